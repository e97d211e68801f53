#!/usr/bin/env bash
# glm53
set -eu

exec vllm serve /mnt/data/models/zai-org__GLM-5.3-FP8 \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name @RUN_ID@ \
  --max-model-len 1048576 \
  --kv-cache-dtype fp8 \
  --enable-prefix-caching \
  --tensor-parallel-size 8 \
  --decode-context-parallel-size 8 \
  --max-num-seqs 8
