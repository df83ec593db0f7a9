vllm serve acme/mid-vl --limit-mm-per-prompt image=4
