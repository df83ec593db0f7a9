PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True vllm serve acme/mid-8b --enable-sleep-mode
