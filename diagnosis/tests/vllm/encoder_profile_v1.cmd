vllm serve acme/mid-vl
