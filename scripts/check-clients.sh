#!/usr/bin/env bash
# Tries clients that others wrote, as they come from the Python index, on a running server:
#   scripts/check-clients.sh http://127.0.0.1:30000 MODEL [TOKENIZER]
# MODEL is the name that /v1/models gives. TOKENIZER is a folder or a name that the benchmark client can load;
# without one the benchmark is left out, and that is said.
set -euo pipefail
cd "$(dirname "$0")/.."
base=${1:?base URL} model=${2:?model} tokenizer=${3:-}
venv=${PLIMSOLL_CLIENTS_VENV:-target/clients-venv}
step() { printf '\n== %s ==\n' "$1"; }

if [ ! -x "$venv/bin/python" ]; then
  python3 -m venv "$venv"
fi
step "curl"
scripts/clients/curl.sh "$base" "$model"

step "openai for Python"
"$venv/bin/pip" install -q 'openai>=1.50'
"$venv/bin/pip" list 2>/dev/null | grep '^openai '
"$venv/bin/python" scripts/clients/openai_client.py "$base" "$model"

if [ -z "$tokenizer" ]; then
  printf '\nno tokenizer given: the benchmark client is left out\n'
  exit 0
fi
step "sglang.bench_serving"
# The client alone: its package without the server's dependencies. Later releases import torch at the start.
"$venv/bin/pip" install -q --no-deps 'sglang==0.4.6.post5'
"$venv/bin/pip" install -q aiohttp numpy requests tqdm transformers pillow pybase64 ipython setproctitle
for backend in sglang sglang-oai vllm; do
  "$venv/bin/python" -m sglang.bench_serving --backend "$backend" --base-url "$base" --model "$model" \
    --tokenizer "$tokenizer" --dataset-name random-ids --num-prompts 8 --random-input-len 32 \
    --random-output-len 16 --request-rate 8 --output-file /dev/null | tee "$venv/bench.txt"
  grep -Eq '^Successful requests: +8 *$' "$venv/bench.txt"
done
