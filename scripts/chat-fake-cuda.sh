#!/usr/bin/env bash
# SmolLM2 answers over the fake CUDA driver: every byte and every kernel of `chat --device cuda`, on the CPU. The answer
# must say Paris. It takes the model as scripts/chat.sh does, and needs g++.
set -euo pipefail
cd "$(dirname "$0")/.."

libraries="${CARGO_TARGET_DIR:-target}/fake-cuda"
scripts/fake-cuda.sh "$libraries"
libraries="$(cd "$libraries" && pwd)"
report="$(mktemp)"
trap 'rm -f "$report"' EXIT
export FAKE_CUDA_TOTAL=$((2 << 30)) FAKE_CUDA_THREADS="$(nproc)"
# Small passes: opening runs the largest one, and the kernels have a CPU to run on.
answer="$(PLIMSOLL_LIBRARIES="$libraries" FAKE_CUDA_REPORT="$report" scripts/chat.sh --device cuda \
    --prompt "What is the capital of France?" --temperature 0 --max-tokens 8 \
    --context-length 128 --chunked-prefill-size 48 --max-total-tokens 256)"
echo "$answer"
case "$answer" in
*Paris*) ;;
*)
    echo "error: the answer does not say Paris" >&2
    exit 1
    ;;
esac
# What the process owed the driver when it ended.
echo "driver: $(cat "$report")"
grep -q '"used_bytes":0' "$report" || { echo "error: memory of the device was not given back" >&2; exit 1; }
