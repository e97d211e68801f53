#!/usr/bin/env bash
# lcplan 0.1.0: run llama8__tp1_a__128k__vllm__kv-fp8__1129-200418
# plan 08b271365535e7f9bfd7d52c2be3591b31e1bf2e8eeae730a12bc915babd8c95, examples/h200/recipes/stacks.yaml:16:3
set -eu

export CUDA_DEVICE_ORDER=PCI_BUS_ID
export CUDA_VISIBLE_DEVICES=GPU-6d09c2e8-39de-9d2f-cd18-e2fd5bd0e89a
export HF_HUB_OFFLINE=1
export NCCL_NVLS_ENABLE=0
export NVSHMEM_DISABLE_NVLS=1
export TORCH_SYMM_MEM_DISABLE_MULTICAST=1
export VLLM_LOGGING_COLOR=0
export VLLM_NO_USAGE_STATS=1
export VLLM_USE_FLASHINFER_SAMPLER=0
exec taskset \
  --cpu-list 0-15 vllm serve /h200/models/llama8 \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name llama8__tp1_a__128k__vllm__kv-fp8__1129-200418 \
  --max-model-len 131072 \
  --load-format dummy \
  --enforce-eager \
  --gpu-memory-utilization 0.92 \
  --kv-cache-dtype fp8
