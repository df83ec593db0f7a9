vllm serve acme/mid-7b --max-num-batched-tokens 65536
