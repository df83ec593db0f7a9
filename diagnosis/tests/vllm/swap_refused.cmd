vllm serve acme/mid-8b -tp 4 --swap-space 4
