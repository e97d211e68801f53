#!/usr/bin/env bash
# lcplan 0.1.0: run llama8__tp1_b__128k__vllm__kv-bf16__1129-200652
# plan 08b271365535e7f9bfd7d52c2be3591b31e1bf2e8eeae730a12bc915babd8c95, examples/h200/recipes/stacks.yaml:16:3
set -eu

export CUDA_DEVICE_ORDER=PCI_BUS_ID
export CUDA_VISIBLE_DEVICES=GPU-5a07d32f-01ae-13df-0c57-538b917435c9
export HF_HUB_OFFLINE=1
export NCCL_NVLS_ENABLE=0
export NVSHMEM_DISABLE_NVLS=1
export TORCH_SYMM_MEM_DISABLE_MULTICAST=1
export VLLM_LOGGING_COLOR=0
export VLLM_NO_USAGE_STATS=1
export VLLM_USE_FLASHINFER_SAMPLER=0
exec taskset \
  --cpu-list 16-31 vllm serve /h200/models/llama8 \
  --host 0.0.0.0 \
  --port 8100 \
  --served-model-name llama8__tp1_b__128k__vllm__kv-bf16__1129-200652 \
  --max-model-len 131072 \
  --load-format dummy \
  --enforce-eager \
  --gpu-memory-utilization 0.92
