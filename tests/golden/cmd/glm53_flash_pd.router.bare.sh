#!/usr/bin/env bash
# glm53_flash_pd.router
set -eu

exec vllm-router \
  --host 0.0.0.0 \
  --port 8000 \
  --vllm-pd-disaggregation \
  --prefill http://127.0.0.1:8000 \
  --decode http://127.0.0.1:8100
