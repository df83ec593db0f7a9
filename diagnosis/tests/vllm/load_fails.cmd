vllm serve acme/big-72b
