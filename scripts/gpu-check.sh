#!/usr/bin/env bash
# Checks the CUDA backend on this machine's device: scripts/gpu-check.sh GPU_CHECK [RESULTS.json [PLIMSOLL]]
#
# GPU_CHECK is the built example (`cargo build --release --example gpu_check -p plimsoll-backend-cuda`);
# nothing else is needed, no toolkit and no network. Results go to the second argument, else to
# $OUT/gpu-check.json, else beside the caller. Takes about a minute and at most two; needs the card for
# itself. With the binary of plimsoll, the founding scenarios follow, on the simulator and on the card, from
# the folder `scenarios` here: beside the results, runs.txt says exit codes and whether all was decided alike.
# Ends with 0 when every check held, 1 when one failed, 3 when there is no device.
set -uo pipefail

check=${1:?usage: scripts/gpu-check.sh GPU_CHECK [RESULTS.json [PLIMSOLL]]}
results=${2:-${OUT:-.}/gpu-check.json}
plimsoll=${3:-}

mkdir -p "$(dirname "$results")"

# Where container runtimes mount the driver, when the loader does not know it.
driver=/usr/local/nvidia/lib64
if [ -e $driver/libcuda.so.1 ]; then export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$driver; fi

# Who else is on the card, for the reader of the results.
if command -v nvidia-smi >/dev/null; then
  nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used,memory.reserved --format=csv
  nvidia-smi --query-compute-apps=pid,used_memory --format=csv
fi

timeout --kill-after=10 120 "$check" "$results"
code=$?
if [ "$code" -ge 124 ]; then
  echo "gpu-check ran longer than two minutes; $results holds the sections before" >&2
fi

# "decisions": "3f…", of one run; its exit code goes to the file descriptor 3.
digest() {
  timeout --kill-after=10 120 "$plimsoll" run "$1" --backend "$2" --format json >"$scratch/$2.json" 2>"$scratch/$2.err"
  echo $? >&3
  grep -o '"decisions": *"[0-9a-f]*"' "$scratch/$2.json" || tail -2 "$scratch/$2.err"
}

if [ -n "$plimsoll" ]; then
  scratch=$(mktemp -d)
  runs=$(dirname "$results")/runs.txt
  : >"$runs"
  for scenario in scenarios/founding/*.yaml; do
    started=$SECONDS
    on_sim=$(digest "$scenario" sim 3>"$scratch/sim.code")
    on_card=$(digest "$scenario" cuda 3>"$scratch/cuda.code")
    same=alike
    if [ "$on_sim" != "$on_card" ]; then same=DIFFERENT; if [ "$code" -eq 0 ]; then code=1; fi; fi
    echo "$scenario: $same, sim $(cat "$scratch/sim.code"), cuda $(cat "$scratch/cuda.code"), $((SECONDS - started)) s, $on_card" |
      tee -a "$runs"
  done
  rm -r "$scratch"
fi

# A device that a check left broken would spoil the next one.
if command -v nvidia-smi >/dev/null; then
  nvidia-smi --query-gpu=memory.used,ecc.errors.uncorrected.volatile.total --format=csv
fi
exit "$code"
