vllm serve acme/hybrid-9b
