vllm serve acme/mid-12b --gpu-memory-utilization 0.95
