vllm serve acme/mid-14b --gpu-memory-utilization 0.8 --max-model-len 65536
