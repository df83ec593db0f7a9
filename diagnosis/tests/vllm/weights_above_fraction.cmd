vllm serve acme/big-72b-fp8 --gpu-memory-utilization 0.85 --max-num-batched-tokens 8192
