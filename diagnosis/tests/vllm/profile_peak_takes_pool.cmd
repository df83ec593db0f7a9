vllm serve acme/mid-13b --gpu-memory-utilization 0.6 --max-num-batched-tokens 32768
