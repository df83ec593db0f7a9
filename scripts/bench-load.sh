#!/usr/bin/env bash
# Times runs of very many requests as whole processes, on one core: user and system CPU seconds and peak
# memory. With a Python that has another simulator (PyPI `ai-dynamo-runtime==1.6.1`, installed with
# `--no-deps`), that one runs on the same files in turn.
#
#   scripts/bench-load.sh [PYTHON] [MOONCAKE]
#
# MOONCAKE is the public conversation trace (kvcache-ai/Mooncake, FAST25-release/traces/conversation_trace.jsonl).
set -euo pipefail
cd "$(dirname "$0")/.."

python=${1:-}
mooncake=${2:-}
binary=${PLIMSOLL:-target/release/plimsoll}
if [ ! -x "$binary" ]; then cargo build --release --locked; fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# job_a COUNT RATE TIMES FILE: Poisson arrivals at RATE a second, lognormal lengths, answers TIMES as long.
job_a() {
  python3 - "$1" "$2" "$3" >"$work/$4" <<'PY'
import json, random, sys
count, rate, times = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
draw, at, block = random.Random(7), 0.0, 0
for _ in range(count):
    at += draw.expovariate(rate)
    prompt = int(min(2048, max(4, draw.lognormvariate(4.62, 1.0))))
    answer = int(min(1024, max(4, draw.lognormvariate(5.52, 0.85)))) * times
    blocks = (prompt + 511) // 512
    row = {"timestamp": int(at * 1000), "input_length": prompt, "output_length": answer,
           "hash_ids": list(range(block, block + blocks))}
    print(json.dumps(row))
    block += blocks
PY
}

# scenario NAME TRACE DEVICE FLAGS...
scenario() {
  local name=$1 trace=$2 device=$3
  shift 3
  cat >"$work/$name.yaml" <<YAML
name: bench/$name
why: how fast a run of very many requests is
source: made for this
seed: 1
machine: { device: $device }
engine:
  version: 0.5.8
  command: python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct $*
workload: { trace: { file: $trace, format: mooncake } }
limits: { max_steps: 1000000000, max_time: 10000000 s }
YAML
}

timed() {
  local what=$1
  shift
  /usr/bin/time -f "$what: %U s user, %S s system, %M KiB" "$@" 2>&1 >/dev/null | tail -1
}

ours() { timed "plimsoll, $1" "$binary" run "$work/$1.yaml" --unlogged; }

theirs() {
  [ -n "$python" ] || return 0
  timed "the other, $1" "$python" - "$work/$2" "$3" <<'PY'
import json, sys
from dynamo._core import run_mocker_trace_replay as replay
engine = {"engine": {"backend": "sglang", "block_size": 1, "num_gpu_blocks": int(sys.argv[2])}}
replay([sys.argv[1]], extra_engine_args=engine, trace_format="mooncake", trace_block_size=512,
       replay_mode="offline")
PY
}

job_a 100000 8 1 job-a.jsonl
scenario job-a job-a.jsonl "H100 SXM 80GB"
# Few together, so that ten times longer answers keep nobody waiting.
job_a 20000 0.5 1 short.jsonl
job_a 20000 0.5 10 long.jsonl
scenario short short.jsonl "H100 SXM 80GB"
scenario long long.jsonl "H100 SXM 80GB"
for _ in 1 2 3; do
  ours job-a
  theirs job-a job-a.jsonl 414004
done
ours short
ours long
if [ -n "$mooncake" ]; then
  cp "$mooncake" "$work/mooncake.jsonl"
  scenario mooncake mooncake.jsonl "B200" --max-total-tokens 1000000 --context-length 200000
  for _ in 1 2 3; do
    ours mooncake
    theirs mooncake mooncake.jsonl 1000000
  done
fi
