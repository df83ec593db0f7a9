#!/usr/bin/env bash
# Checks the CUDA backend on this machine's device: scripts/gpu-check.sh GPU_CHECK [RESULTS.json]
#
# GPU_CHECK is the built example (`cargo build --release --example gpu_check -p plimsoll-backend-cuda`);
# nothing else is needed, no toolkit and no network. Results go to the second argument, else to
# $OUT/gpu-check.json, else beside the caller. Takes about a minute and at most two; needs the card for
# itself. Ends with 0 when every check held, 1 when one failed, 3 when there is no device.
set -uo pipefail

check=${1:?usage: scripts/gpu-check.sh GPU_CHECK [RESULTS.json]}
results=${2:-${OUT:-.}/gpu-check.json}

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

# A device that a check left broken would spoil the next one.
if command -v nvidia-smi >/dev/null; then
  nvidia-smi --query-gpu=memory.used,ecc.errors.uncorrected.volatile.total --format=csv
fi
exit "$code"
