vllm serve acme/big-34b -tp 4 --speculative-model acme/small-7b --num-speculative-tokens 4 --gpu-memory-utilization 0.9
