#!/usr/bin/env bash
# Checks the CUDA backend on this machine's device: scripts/gpu-check.sh GPU_CHECK [RESULTS.json [PLIMSOLL [MODEL]]]
#
# GPU_CHECK is the built example (`cargo build --release --example gpu_check -p plimsoll-backend-cuda`); it needs the
# driver and cuBLASLt (`plimsoll doctor --cuda` says where to get it), no toolkit and no network. Needs the card for
# itself; at most ten minutes. A compute-sanitizer on the PATH watches a short run. With the binary of plimsoll the
# founding scenarios follow, on the simulator and on the card (scaled to it), from the folder `scenarios` here. With a model too (a
# folder from the hub or a .gguf file) it is served on the card: a client's question, a load, and a recording that must
# replay; SERVE_FLAGS are more flags for that server, ANSWER is what its answer must hold.
# All results are one JSON file: the second argument, else $OUT/gpu-check.json, else beside the caller. Logs stand beside it.
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
# Subshells cannot change `code`: what fails in them leaves a file.
failed() { touch "$scratch/failed"; }

limited 240 "$check" "$scratch/checks.json"
code=$?
if [ "$code" -ge 124 ]; then
  echo "gpu-check ran longer than four minutes; the results hold the sections before" >&2
fi

sanitizer='"not run: compute-sanitizer is not on the PATH"'
if [ "$code" -ne 3 ] && command -v compute-sanitizer >/dev/null; then
  sanitizer='"no error"'
  limited 60 compute-sanitizer --error-exitcode 9 "$check" --short "$scratch/short.json" >"$beside/sanitizer.txt" 2>&1 ||
    { sanitizer='"errors, or too slow: see sanitizer.txt"' && failed; }
fi
echo "compute-sanitizer: $sanitizer"

# The digest of a run's decisions; its exit code goes to the file descriptor 3.
digest() {
  # shellcheck disable=SC2086 # flags are words
  limited 60 "$plimsoll" run "$1" $2 --format json >"$scratch/run.json" 2>"$scratch/run.err"
  echo $? >&3
  grep -o '"decisions": *"[0-9a-f]*"' "$scratch/run.json" | grep -o '[0-9a-f]*"$' | tr -d '"' || tail -2 "$scratch/run.err" >&2
}

founding() {
  comma=
  for scenario in scenarios/founding/*.yaml; do
    started=$SECONDS
    on_sim=$(digest "$scenario" "--backend sim" 3>"$scratch/sim.code")
    on_card=$(digest "$scenario" "--backend cuda --observe scaled" 3>"$scratch/cuda.code")
    same=true
    if [ -z "$on_sim" ] || [ "$on_sim" != "$on_card" ]; then same=false && failed; fi
    printf '%s\n  {"scenario": "%s", "alike": %s, "sim_exit": %s, "cuda_exit": %s, "seconds": %s, "decisions": "%s"}' \
      "$comma" "$scenario" $same "$(cat "$scratch/sim.code")" "$(cat "$scratch/cuda.code")" $((SECONDS - started)) "$on_card"
    comma=,
  done
}

# Serves the model on the card to a client, then replays what was recorded on the simulator.
serve() {
  port=30417 served=$beside/served.txt
  # shellcheck disable=SC2086 # flags are words
  "$plimsoll" serve --device cuda --model-path "$model" --port $port --strict-memory ${SERVE_FLAGS:-} \
    --record "$scratch/served.jsonl" >"$served" 2>&1 &
  server=$!
  for _ in $(seq 240); do
    if curl -sf "localhost:$port/ready" >/dev/null || ! kill -0 $server 2>/dev/null; then break; fi
    sleep 0.5
  done
  ask='{"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "max_tokens": 16}'
  answer=$(curl -sf "localhost:$port/v1/chat/completions" -H 'content-type: application/json' -d "$ask")
  grep -q "${ANSWER:-Paris}" <<<"$answer" || failed
  load=$(limited 90 "$plimsoll" bench --base-url "http://localhost:$port" --num-prompts 16 --input-len 32 --output-len 16 \
    --format json 2>>"$served") || failed
  info=$(curl -sf "localhost:$port/get_server_info") || failed
  kill -TERM $server && wait $server || failed
  replay=$(limited 60 "$plimsoll" replay "$scratch/served.jsonl" --format json 2>>"$served") || failed
  printf '{"answer": %s, "load": %s, "server": %s, "replay": %s}' \
    "${answer:-null}" "${load:-null}" "${info:-null}" "${replay:-null}"
}

runs=null served=null
if [ "$code" -ne 3 ] && [ -n "$plimsoll" ]; then runs="[$(founding)
]"; fi
if [ "$code" -ne 3 ] && [ -n "$model" ]; then served=$(serve); fi
if [ "$code" -eq 0 ] && [ -e "$scratch/failed" ]; then code=1; fi

checks=$(cat "$scratch/checks.json" 2>/dev/null)
printf '{"schema": "plimsoll.gpu_check/2", "exit": %s, "checks": %s, "sanitizer": %s, "founding": %s, "served": %s}\n' \
  "$code" "${checks:-null}" "$sanitizer" "$runs" "$served" >"$results"

# A device that a check left broken would spoil the next one.
if command -v nvidia-smi >/dev/null; then
  nvidia-smi --query-gpu=memory.used,ecc.errors.uncorrected.volatile.total --format=csv
fi
echo "results: $results, exit $code"
exit "$code"
