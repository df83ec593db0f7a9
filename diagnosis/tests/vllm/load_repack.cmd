vllm serve acme/mid-27b-int4
