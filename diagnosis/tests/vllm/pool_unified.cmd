vllm serve acme/mid-32b
