vllm serve acme/small-3b --gpu-memory-utilization 0.20
