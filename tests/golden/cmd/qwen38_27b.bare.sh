#!/usr/bin/env bash
# qwen38_27b
set -eu

exec vllm serve /mnt/data/models/Qwen__Qwen3.8-27B \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name @RUN_ID@ \
  --max-model-len 262144 \
  --gpu-memory-utilization 0.92 \
  --data-parallel-size 4 \
  --max-num-seqs 64
