vllm serve acme/long-30b --gpu-memory-utilization 0.95 --max-model-len 200000 --max-num-batched-tokens 16384
