#!/usr/bin/env bash
# dsv4_flash_0731_fp8
set -eu

export SGLANG_DSV4_FP4_EXPERTS=0
exec python3 \
  -m sglang.launch_server \
  --model-path /mnt/data/models/AtlasCloud__DeepSeek-V4-Flash-0731-FP8-DSpark \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name @RUN_ID@ \
  --context-length 1048576 \
  --tp-size 4 \
  --kv-cache-dtype fp8_e4m3 \
  --page-size 256 \
  --mem-fraction-static 0.9 \
  --chunked-prefill-size 4096 \
  --swa-full-tokens-ratio 0.1 \
  --max-running-requests 64
