#!/usr/bin/env bash
# Checks the CUDA backend on this machine's device: scripts/gpu-check.sh GPU_CHECK [RESULTS.json [PLIMSOLL [MODEL]]]
#
# GPU_CHECK is the built example (`cargo build --release --example gpu_check -p plimsoll-backend-cuda`); it needs the
# driver and cuBLASLt (`plimsoll doctor --cuda` says where to get it), no toolkit and no network. Results go to the
# second argument, else to $OUT/gpu-check.json, else beside the caller. Needs the card for itself; at most ten minutes.
# With the binary of plimsoll, the founding scenarios follow, on the simulator and on the card, from the folder
# `scenarios` here: beside the results, runs.txt says exit codes and whether all was decided alike. With a model too
# (a folder from the hub or a .gguf file), it is served on the card: a client's requests, a recording that must replay,
# and a load; served.txt says what came. A compute-sanitizer on the PATH watches a short run.
# Ends with 0 when every check held, 1 when one failed, 3 when there is no device.
set -uo pipefail

check=${1:?usage: scripts/gpu-check.sh GPU_CHECK [RESULTS.json [PLIMSOLL [MODEL]]]}
results=${2:-${OUT:-.}/gpu-check.json}
plimsoll=${3:-}
model=${4:-}

mkdir -p "$(dirname "$results")"
beside=$(dirname "$results")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Where container runtimes mount the driver, when the loader does not know it.
driver=/usr/local/nvidia/lib64
if [ -e $driver/libcuda.so.1 ]; then export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$driver; fi

# Who else is on the card, for the reader of the results.
if command -v nvidia-smi >/dev/null; then
  nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used,memory.reserved --format=csv
  nvidia-smi --query-compute-apps=pid,used_memory --format=csv
fi

limited() { timeout --kill-after=10 "$@"; }
failed() { if [ "$code" -eq 0 ]; then code=1; fi; }

limited 240 "$check" "$results"
code=$?
if [ "$code" -ge 124 ]; then
  echo "gpu-check ran longer than four minutes; $results holds the sections before" >&2
fi
if [ "$code" -eq 3 ]; then exit 3; fi

if command -v compute-sanitizer >/dev/null; then
  limited 60 compute-sanitizer --error-exitcode 9 "$check" --short "$scratch/short.json" >"$beside/sanitizer.txt" 2>&1 || failed
  tail -1 "$beside/sanitizer.txt"
else
  echo "compute-sanitizer is not on the PATH: not run"
fi

# "decisions": "3f…", of one run; its exit code goes to the file descriptor 3.
digest() {
  limited 60 "$plimsoll" run "$1" --backend "$2" --format json >"$scratch/$2.json" 2>"$scratch/$2.err"
  echo $? >&3
  grep -o '"decisions": *"[0-9a-f]*"' "$scratch/$2.json" || tail -2 "$scratch/$2.err"
}

founding() {
  : >"$beside/runs.txt"
  for scenario in scenarios/founding/*.yaml; do
    started=$SECONDS
    on_sim=$(digest "$scenario" sim 3>"$scratch/sim.code")
    on_card=$(digest "$scenario" cuda 3>"$scratch/cuda.code")
    same=alike
    if [ "$on_sim" != "$on_card" ]; then same=DIFFERENT && failed; fi
    echo "$scenario: $same, sim $(cat "$scratch/sim.code"), cuda $(cat "$scratch/cuda.code"), $((SECONDS - started)) s, $on_card" |
      tee -a "$beside/runs.txt"
  done
}

# Serves the model on the card to a client, then replays what was recorded on the simulator.
serve() {
  port=30417
  "$plimsoll" serve --device cuda --model-path "$model" --port $port --strict-memory \
    --record "$scratch/served.jsonl" >"$beside/served.txt" 2>&1 &
  server=$!
  for _ in $(seq 120); do
    if curl -sf "localhost:$port/health" >/dev/null || ! kill -0 $server 2>/dev/null; then break; fi
    sleep 0.5
  done
  ask='{"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "max_tokens": 16}'
  curl -sf "localhost:$port/v1/chat/completions" -H 'content-type: application/json' -d "$ask" |
    tee -a "$beside/served.txt" | grep -q Paris || failed
  limited 60 "$plimsoll" bench --base-url "http://localhost:$port" >>"$beside/served.txt" 2>&1 || failed
  curl -sf "localhost:$port/get_server_info" >>"$beside/served.txt" || failed
  kill -TERM $server && wait $server || failed
  limited 60 "$plimsoll" replay "$scratch/served.jsonl" >>"$beside/served.txt" 2>&1 || failed
  tail -3 "$beside/served.txt"
}

if [ -n "$plimsoll" ]; then founding; fi
if [ -n "$model" ]; then serve; fi

# A device that a check left broken would spoil the next one.
if command -v nvidia-smi >/dev/null; then
  nvidia-smi --query-gpu=memory.used,ecc.errors.uncorrected.volatile.total --format=csv
fi
exit "$code"
