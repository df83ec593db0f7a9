vllm serve acme/moe-30b
