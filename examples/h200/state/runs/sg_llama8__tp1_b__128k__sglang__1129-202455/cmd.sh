#!/usr/bin/env bash
# lcplan 0.1.0: run sg_llama8__tp1_b__128k__sglang__1129-202455
# plan 02a60086a10d42221059396964789b47f3cbaef96e67c292d89281eb20e60bed, examples/h200/recipes/stacks.yaml:55:3
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
  --model-path /h200/models/llama8 \
  --host 0.0.0.0 \
  --port 8100 \
  --served-model-name sg_llama8__tp1_b__128k__sglang__1129-202455 \
  --context-length 131072 \
  --load-format dummy \
  --mem-fraction-static 0.88 \
  --attention-backend triton \
  --disable-cuda-graph \
  --grammar-backend none \
  --sampling-backend pytorch \
  --enable-metrics \
  --enable-cache-report
