vllm serve acme/long-30b --speculative-config '{"model":"acme/small-1b","num_speculative_tokens":3}' --gpu-memory-utilization 0.95
