#!/usr/bin/env bash
# Times the whole process of `plimsoll plan` for the founding command: minimum, median and maximum of
# many runs, the number of instructions, and the size of the binary.
#
#   scripts/bench-plan.sh [RUNS] [BINARY]        200 runs of target/release/plimsoll by default
set -euo pipefail
cd "$(dirname "$0")/.."

runs=${1:-200}
binary=${2:-${CARGO_TARGET_DIR:-target}/release/plimsoll}
if [ ! -x "$binary" ]; then cargo build --release --locked; fi

command=("$binary" plan --device "RTX PRO 6000 Blackwell" --
  python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8
  --mem-fraction-static 0.93 --enable-hierarchical-cache --hicache-size 48)

# 1 is an answer too: a problem was found. Anything above is a failure to plan.
status=0
"${command[@]}" >/dev/null || status=$?
if [ "$status" -gt 1 ]; then echo "plan failed with status $status" >&2; exit "$status"; fi

now() { local t=${EPOCHREALTIME/[^0-9]/}; echo "$t"; }
times=()
for ((i = 0; i < runs; i++)); do
  start=$(now)
  "${command[@]}" >/dev/null || true
  end=$(now)
  times+=($((end - start)))
done
printf '%s\n' "${times[@]}" | sort -n | awk '
  { t[NR] = $1 }
  END { printf "wall, ms: min %.2f, median %.2f, max %.2f (%d runs)\n", t[1] / 1000, t[int((NR + 1) / 2)] / 1000, t[NR] / 1000, NR }'

if command -v valgrind >/dev/null; then
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "${command[@]}" 2>&1 >/dev/null |
    sed -n 's/.*Collected : */instructions: /p'
else
  echo "instructions: valgrind is not installed, not counted"
fi
echo "binary: $(wc -c <"$binary") bytes"
