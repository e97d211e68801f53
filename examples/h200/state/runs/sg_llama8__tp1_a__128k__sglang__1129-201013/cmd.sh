#!/usr/bin/env bash
# lcplan 0.1.0: run sg_llama8__tp1_a__128k__sglang__1129-201013
# plan 08b271365535e7f9bfd7d52c2be3591b31e1bf2e8eeae730a12bc915babd8c95, examples/h200/recipes/stacks.yaml:55:3
set -eu

export CUDA_DEVICE_ORDER=PCI_BUS_ID
export CUDA_VISIBLE_DEVICES=GPU-6d09c2e8-39de-9d2f-cd18-e2fd5bd0e89a
export HF_HUB_OFFLINE=1
export NCCL_NVLS_ENABLE=0
export NVSHMEM_DISABLE_NVLS=1
export PYTHONPATH=/h200/sglang
export TORCH_SYMM_MEM_DISABLE_MULTICAST=1
exec taskset \
  --cpu-list 0-15 python3 \
  -m sglang.launch_server \
  --model-path /h200/models/llama8 \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name sg_llama8__tp1_a__128k__sglang__1129-201013 \
  --context-length 131072 \
  --load-format dummy \
  --mem-fraction-static 0.88 \
  --attention-backend triton \
  --disable-cuda-graph \
  --grammar-backend none \
  --sampling-backend pytorch \
  --enable-metrics \
  --enable-cache-report
