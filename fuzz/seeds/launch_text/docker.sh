export N=2 # ranks
docker run --gpus '"device=0,1"' --shm-size 32g -e SGLANG_USE_MODELSCOPE=0 lmsysorg/sglang:v0.5.8-cu126 \
  python3 -m sglang.launch_server --model-path org/model-7b \
  --tp ${N:-4} --mem-fraction-static=0.85 --cuda-graph-bs 1 2 4 8 \
  --json-model-override-args '{"num_hidden_layers": 4}' --chunked-prefill-size 4096 > log 2>&1 &
