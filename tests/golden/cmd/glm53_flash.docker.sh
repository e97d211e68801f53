#!/usr/bin/env bash
# glm53_flash
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
  serve /mnt/data/models/zai-org__GLM-5.3-Flash \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name @RUN_ID@ \
  --max-model-len 1048576 \
  --gpu-memory-utilization 0.92 \
  --enable-chunked-prefill \
  --enable-prefix-caching \
  --language-model-only \
  --max-num-batched-tokens 8192 \
  --tensor-parallel-size 4 \
  --max-num-seqs 64
