vllm serve acme/mid-14b --gpu-memory-utilization 0.86 --max-model-len 65536
