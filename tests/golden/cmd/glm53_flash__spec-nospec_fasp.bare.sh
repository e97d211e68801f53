#!/usr/bin/env bash
# glm53_flash__spec-nospec_fasp
set -eu

exec vllm serve /mnt/data/models/zai-org__GLM-5.3-Flash \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name @RUN_ID@ \
  --max-model-len 1048576 \
  --gpu-memory-utilization 0.92 \
  --enable-chunked-prefill \
  --enable-prefix-caching \
  --language-model-only \
  --max-num-batched-tokens 8192 \
  --attention-backend FLASH_ATTN_MLA_SPARSE \
  --tensor-parallel-size 4 \
  --max-num-seqs 64
