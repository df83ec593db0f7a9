vllm serve acme/mid-9b --gpu-memory-utilization 0.92 --max-num-seqs 512
