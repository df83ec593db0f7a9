#!/usr/bin/env bash
# Runs every scenario with two builds and compares the digests of their decision logs; names each scenario
# that differs.
#
#   scripts/same-digests.sh [A] [B] [SCENARIO...]
#
# By default target/release/plimsoll against target/debug/plimsoll, and all of scenarios/. The second build
# runs two scenarios at a time. Exit 1 when a digest differs, 2 when a build is missing or cannot run.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
a=${1:-$target/release/plimsoll}
b=${2:-$target/debug/plimsoll}
if [ $# -gt 2 ]; then scenarios=("${@:3}"); else scenarios=(scenarios); fi
for binary in "$a" "$b"; do
  if [ ! -x "$binary" ]; then echo "$binary is not there: build it first" >&2; exit 2; fi
done

# One line a scenario: its name and both digests.
digests() {
  local status=0 lines
  lines=$("$@") || status=$?
  # 1: a claim failed. That is the tests' business, the log is whole.
  if [ "$status" -gt 1 ]; then echo "$1: status $status" >&2; return 2; fi
  sed -nE 's/.*"scenario":"([^"]*)".*"digests":\{"decisions":"([0-9a-f]+)","full":"([0-9a-f]+)"\}.*/\1 \2 \3/p' <<<"$lines"
}

first=$(digests "$a" run --format jsonl "${scenarios[@]}") || exit 2
second=$(digests "$b" run --format jsonl --threads 2 "${scenarios[@]}") || exit 2
count=$(grep -c . <<<"$first" || true)
if [ "$count" -eq 0 ]; then echo "no digest was printed" >&2; exit 2; fi

if [ "$first" != "$second" ]; then
  echo "differ between $a and $b (name, decisions, full):"
  diff <(echo "$first") <(echo "$second") | grep '^[<>]' || true
  exit 1
fi
echo "$count scenarios: the same digests from $a and $b"
