vllm serve acme/mid-8b --enable-sleep-mode --gpu-memory-utilization 0.95
