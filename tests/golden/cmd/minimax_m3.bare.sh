#!/usr/bin/env bash
# minimax_m3
set -eu

exec vllm serve /mnt/data/models/MiniMaxAI__MiniMax-M3-MXFP8 \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name @RUN_ID@ \
  --max-model-len 1048576 \
  --kv-cache-dtype fp8 \
  --enable-prefix-caching \
  --tensor-parallel-size 8 \
  --enable-expert-parallel \
  --max-num-seqs 16
