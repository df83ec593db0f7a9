vllm serve acme/mid-7b
