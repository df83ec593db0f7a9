vllm serve acme/mid-8b --swap-space 2
