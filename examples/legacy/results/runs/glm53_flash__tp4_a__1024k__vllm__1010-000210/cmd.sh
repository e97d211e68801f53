#!/usr/bin/env bash
# trimmed: what concerns the machine's network and logging was cut
docker run --rm --name glm53_flash__tp4_a__1024k__vllm__1010-000210 \
  --gpus '"device=0,1,2,3"' --ipc host \
  -v /mnt/data/models:/mnt/data/models:ro \
  vllm/vllm-openai:v0.31.0 \
  /mnt/data/models/zai-org__GLM-5.3-Flash \
  --served-model-name glm53_flash__tp4_a__1024k__vllm__1010-000210 \
  --max-model-len 1048576 \
  --gpu-memory-utilization 0.92 \
  --enable-chunked-prefill \
  --enable-prefix-caching \
  --language-model-only \
  --max-num-batched-tokens 8192 \
  --tensor-parallel-size 4 \
  --max-num-seqs 64
