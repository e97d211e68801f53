#!/usr/bin/env bash
# lcplan 0.1.0: run sg_dsv3s__tp1_b__160k__sglang__1129-200950
# plan 08b271365535e7f9bfd7d52c2be3591b31e1bf2e8eeae730a12bc915babd8c95, examples/h200/recipes/stacks.yaml:72:3
set -eu

export CUDA_DEVICE_ORDER=PCI_BUS_ID
export CUDA_VISIBLE_DEVICES=GPU-5a07d32f-01ae-13df-0c57-538b917435c9
export HF_HUB_OFFLINE=1
export NCCL_NVLS_ENABLE=0
export NVSHMEM_DISABLE_NVLS=1
export PYTHONPATH=/h200/sglang
export TORCH_SYMM_MEM_DISABLE_MULTICAST=1
exec taskset \
  --cpu-list 16-31 python3 \
  -m sglang.launch_server \
  --model-path /h200/models/dsv3s \
  --host 0.0.0.0 \
  --port 8100 \
  --served-model-name sg_dsv3s__tp1_b__160k__sglang__1129-200950 \
  --context-length 163840 \
  --load-format dummy \
  --mem-fraction-static 0.88 \
  --attention-backend triton \
  --disable-cuda-graph \
  --grammar-backend none \
  --sampling-backend pytorch \
  --enable-metrics \
  --enable-cache-report
