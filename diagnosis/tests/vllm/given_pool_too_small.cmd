vllm serve acme/mid-14b --kv-cache-memory-bytes 4294967296 --max-model-len 65536
