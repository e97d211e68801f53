#!/usr/bin/env bash
# trimmed: what concerns the machine's network and logging was cut
docker run --rm --name qwen36_35b__dp4_b__1024k__vllm__1010-021504 \
  --gpus '"device=4,5,6,7"' --ipc host \
  -v /mnt/data/models:/mnt/data/models:ro \
  vllm/vllm-openai:v0.31.0 \
  /mnt/data/models/Qwen__Qwen3.6-35B-A3B \
  --served-model-name qwen36_35b__dp4_b__1024k__vllm__1010-021504 \
  --max-model-len 1048576 \
  --gpu-memory-utilization 0.92 \
  --max-num-batched-tokens 8192 \
  --data-parallel-size 4 \
  ...
