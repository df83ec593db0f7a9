vllm serve Qwen/Qwen3-32B --gpu-memory-utilization 0.95 --max-num-batched-tokens 2048
