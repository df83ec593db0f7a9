vllm serve acme/mid-7b --gpu-memory-utilization 0.97
