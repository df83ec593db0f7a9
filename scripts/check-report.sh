#!/usr/bin/env bash
# Makes the page of the run of 100,000 requests (job A of scripts/bench-load.sh) and of the founding crash, opens
# each in a headless Chromium, and says size, memory and time to open. Exit 1 when the large page is 5 MB or more, or
# takes 2 s or more to open.
#
#   scripts/check-report.sh [FOLDER]
#
# FOLDER keeps the pages. PLIMSOLL names the binary, CHROMIUM the browser.
set -euo pipefail
cd "$(dirname "$0")/.."

binary=${PLIMSOLL:-${CARGO_TARGET_DIR:-target}/release/plimsoll}
if [ ! -x "$binary" ]; then echo "$binary is not there: build it first" >&2; exit 2; fi
browser=${CHROMIUM:-$(command -v chromium || command -v google-chrome || true)}
if [ -z "$browser" ]; then echo "no Chromium: install it, or name it in CHROMIUM" >&2; exit 2; fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=${1:-$work}
mkdir -p "$out"

python3 - >"$work/job-a.csv" <<'PY'
import random
draw, at = random.Random(7), 0.0
print("arrived_at,num_prefill_tokens,num_decode_tokens")
for _ in range(100_000):
    at += draw.expovariate(8)
    prompt = int(min(2048, max(4, draw.lognormvariate(4.62, 1.0))))
    answer = int(min(1024, max(4, draw.lognormvariate(5.52, 0.85))))
    print(f"{at:.6f},{prompt},{answer}")
PY
cat >"$work/job-a.yaml" <<YAML
name: bench/job-a
why: A run of very many requests, to look at.
source: made for this
machine: { device: "H100 SXM 80GB" }
engine:
  version: 0.5.8
  command: python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct
workload: { trace: { file: job-a.csv } }
limits: { max_steps: 1000000000, max_time: 10000000 s }
YAML

# page NAME FILE FLAGS...: makes it and says what that took.
page() {
  local name=$1
  shift
  rm -f "$out/$name.html"
  # A crash that was expected is exit 0.
  /usr/bin/time -f "$name: made in %U s user, %M KiB" "$binary" run "$@" --report "$out/$name.html" 2>&1 >/dev/null | tail -1
}

# opened NAME: milliseconds until the charts are drawn, by the page's own clock; the middle of three.
opened() {
  for turn in 1 2 3; do
    "$browser" --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
      --disable-component-update --disable-sync --disable-dev-shm-usage --user-data-dir="$work/profile-$turn" \
      --dump-dom "file://$(realpath "$out/$1.html")" 2>/dev/null | grep -o 'data-open-ms="[0-9]*"' | grep -o '[0-9]*'
  done | sort -n | sed -n 2p
}

status=0
page job-a "$work/job-a.yaml" --unlogged
page founding scenarios/founding/margin-0.93.yaml
for name in job-a founding; do
  size=$(stat -c %s "$out/$name.html")
  ms=$(opened "$name")
  echo "$name: $size bytes, opened in ${ms:-?} ms"
  if [ "$size" -ge 5000000 ] || [ "${ms:-9999}" -ge 2000 ]; then status=1; fi
done
exit $status
