pip install "vllm==0.11.0"
CUDA_VISIBLE_DEVICES=0,1,2,3 nohup vllm serve org/model-70b -tp 4 --max-model-len 32k --gpu-memory-utilization 0.92 --kv-cache-dtype fp8 --no-enable-prefix-caching
