kubectl exec pod-0 -- bash -lc "cd /srv && python -m sglang.launch_server --model org/model-1b --tp 2 --dp 2 --enable-dp-attention --mem-fraction-static 0.8 | tee log"
