vllm serve acme/mid-8b --enable-lora
