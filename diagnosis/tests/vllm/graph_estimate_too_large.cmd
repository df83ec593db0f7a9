vllm serve acme/huge-moe -tp 2 --gpu-memory-utilization 0.9
