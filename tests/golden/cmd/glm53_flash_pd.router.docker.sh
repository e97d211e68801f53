#!/usr/bin/env bash
# glm53_flash_pd.router
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
  --entrypoint vllm-router \
  vllm/vllm-openai:v0.31.0 \
  --host 0.0.0.0 \
  --port 8000 \
  --vllm-pd-disaggregation \
  --prefill http://127.0.0.1:8000 \
  --decode http://127.0.0.1:8100
