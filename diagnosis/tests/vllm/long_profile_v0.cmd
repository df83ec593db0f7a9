vllm serve acme/mid-8b --gpu-memory-utilization 0.70 --max-model-len 26000
