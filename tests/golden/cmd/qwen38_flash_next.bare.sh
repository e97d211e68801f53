#!/usr/bin/env bash
# qwen38_flash_next
set -eu

exec vllm serve /mnt/data/models/Qwen__Qwen3.8-Flash-Next \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name @RUN_ID@ \
  --max-model-len 1048576 \
  --gpu-memory-utilization 0.92 \
  --max-num-batched-tokens 8192 \
  --tensor-parallel-size 4 \
  --enable-expert-parallel \
  --max-num-seqs 64
