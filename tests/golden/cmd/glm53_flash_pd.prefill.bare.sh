#!/usr/bin/env bash
# glm53_flash_pd.prefill
set -eu

export VLLM_NIXL_SIDE_CHANNEL_PORT=18000
exec vllm serve /mnt/data/models/zai-org__GLM-5.3-Flash \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name @RUN_ID@ \
  --max-model-len 262144 \
  --gpu-memory-utilization 0.92 \
  --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}' \
  --tensor-parallel-size 4
