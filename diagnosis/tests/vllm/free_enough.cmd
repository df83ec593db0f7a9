vllm serve acme/mid-13b
