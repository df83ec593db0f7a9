vllm serve Qwen/Qwen3-32B --gpu-memory-utilization 0.95 --max-num-batched-tokens 4096 --max-num-seqs 64
