vllm serve acme/mid-8b -tp 2 --swap-space 4
