vllm serve acme/small-1b --gpu-memory-utilization 0.25
