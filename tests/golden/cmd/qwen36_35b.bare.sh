#!/usr/bin/env bash
# qwen36_35b
set -eu

exec vllm serve /mnt/data/models/Qwen__Qwen3.6-35B-A3B \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name @RUN_ID@ \
  --max-model-len 1048576 \
  --gpu-memory-utilization 0.92 \
  --max-num-batched-tokens 8192 \
  --hf-overrides '{"rope_parameters":{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":262144},"max_position_embeddings":1048576}' \
  --data-parallel-size 4
