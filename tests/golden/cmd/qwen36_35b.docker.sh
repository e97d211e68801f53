#!/usr/bin/env bash
# qwen36_35b
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
  serve /mnt/data/models/Qwen__Qwen3.6-35B-A3B \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name @RUN_ID@ \
  --max-model-len 1048576 \
  --gpu-memory-utilization 0.92 \
  --max-num-batched-tokens 8192 \
  --hf-overrides '{"rope_parameters":{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":262144},"max_position_embeddings":1048576}' \
  --data-parallel-size 4
