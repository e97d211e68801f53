#!/usr/bin/env bash
# lcplan 0.1.0: run qwen3moe__dp2__256k__vllm__experts-tp__1129-201958
# plan de8667c1f65a34e0d409192315c2651c0be2852d869138b587e31dcd0116435a, examples/h200/recipes/stacks.yaml:36:3
set -eu

export CUDA_DEVICE_ORDER=PCI_BUS_ID
export CUDA_VISIBLE_DEVICES=GPU-6d09c2e8-39de-9d2f-cd18-e2fd5bd0e89a,GPU-5a07d32f-01ae-13df-0c57-538b917435c9
export HF_HUB_OFFLINE=1
export NCCL_NVLS_ENABLE=0
export NVSHMEM_DISABLE_NVLS=1
export TORCH_SYMM_MEM_DISABLE_MULTICAST=1
export VLLM_LOGGING_COLOR=0
export VLLM_NO_USAGE_STATS=1
export VLLM_USE_FLASHINFER_SAMPLER=0
exec taskset \
  --cpu-list 0-15,16-31 vllm serve /h200/models/qwen3moe \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name qwen3moe__dp2__256k__vllm__experts-tp__1129-201958 \
  --max-model-len 262144 \
  --load-format dummy \
  --enforce-eager \
  --gpu-memory-utilization 0.92 \
  --data-parallel-size 2
