#!/usr/bin/env bash
# lcplan 0.1.0: run sg_dsv3s__tp1_a__160k__sglang__1129-202455
# plan 02a60086a10d42221059396964789b47f3cbaef96e67c292d89281eb20e60bed, examples/h200/recipes/stacks.yaml:72:3
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
  --model-path /h200/models/dsv3s \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name sg_dsv3s__tp1_a__160k__sglang__1129-202455 \
  --context-length 163840 \
  --load-format dummy \
  --mem-fraction-static 0.88 \
  --attention-backend triton \
  --disable-cuda-graph \
  --grammar-backend none \
  --sampling-backend pytorch \
  --enable-metrics \
  --enable-cache-report
