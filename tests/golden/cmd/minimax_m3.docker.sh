#!/usr/bin/env bash
# minimax_m3
set -eu

: "${HF_TOKEN:?is needed from the environment}"
exec docker run \
  --name @RUN_ID@ \
  --gpus '"device=0,1,2,3"' \
  --cpuset-cpus 0-47,96-143 \
  --ipc host \
  --network host \
  --init \
  -v /mnt/data/models:/mnt/data/models:ro \
  --label lcplan.run=@RUN_ID@ \
  -e HF_TOKEN \
  --entrypoint vllm \
  vllm/vllm-openai:v0.31.0 \
  serve /mnt/data/models/MiniMaxAI__MiniMax-M3-MXFP8 \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name @RUN_ID@ \
  --max-model-len 1048576 \
  --kv-cache-dtype fp8 \
  --enable-prefix-caching \
  --tensor-parallel-size 8 \
  --enable-expert-parallel \
  --max-num-seqs 16
