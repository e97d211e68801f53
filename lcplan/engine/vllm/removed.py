"""What vLLM once had and 0.31 has no more.

Found by comparing vllm/engine/arg_utils.py, vllm/entrypoints/openai/cli_args.py and vllm/envs.py of the wheels 0.4.2,
0.5.4, 0.6.6, 0.7.3, 0.8.5, 0.10.2, 0.13.0 and 0.16.0 with those of 0.31.0; what came and went between two is not here.
"""

from __future__ import annotations

from collections.abc import Mapping

_WITH_VALUE = """
    cuda-graph-sizes device eplb-step-interval eplb-window-size guided-decoding-backend image-feature-size
    image-input-shape image-input-type image-token-id logits-processor-pattern long-lora-scaling-factors
    lora-extra-vocab-size max-context-len-to-capture max-long-partial-prefills max-num-partial-prefills
    max-prompt-adapter-token max-prompt-adapters max-seq-len-to-capture ngram-prompt-lookup-max
    ngram-prompt-lookup-min num-lookahead-slots num-redundant-experts num-scheduler-steps num-speculative-tokens
    override-attention-dtype override-neuron-config override-pooler-config preemption-mode prompt-adapters
    qlora-adapter-name-or-path quantization-param-path rope-scaling rope-theta scheduler-delay-factor
    spec-decoding-acceptance-method speculative-disable-by-batch-size speculative-draft-tensor-parallel-size
    speculative-max-model-len speculative-model speculative-model-quantization swap-space task
    tokenizer-pool-extra-config tokenizer-pool-size tokenizer-pool-type typical-acceptance-sampler-posterior-alpha
    typical-acceptance-sampler-posterior-threshold
"""
_SWITCHES = """
    calculate-kv-scales disable-async-output-proc disable-frontend-multiprocessing disable-log-requests
    disable-logprobs-during-spec-decoding disable-mm-preprocessor-cache enable-lora-bias
    enable-multimodal-encoder-data-parallel enable-prompt-adapter enable-reasoning engine-use-ray
    eplb-log-balancedness guided-decoding-disable-additional-properties guided-decoding-disable-any-whitespace
    guided-decoding-disable-fallback multi-step-stream-outputs speculative-disable-mqa-scorer use-v2-block-manager
    worker-use-ray
"""
# flag -> whether it took a value
REMOVED_FLAGS: Mapping[str, bool] = {
    **dict.fromkeys(_WITH_VALUE.split(), True),
    **dict.fromkeys(_SWITCHES.split(), False),
}

_VARIABLES = """
    ALL2ALL_BACKEND ATTENTION_BACKEND BUILD_WITH_NEURON CI_USE_S3 CPU_SGL_KERNEL CUDA_MEM_ALIGN_KV_CACHE
    DISABLE_FLASHINFER_PREFILL DISABLE_PAD_FOR_CUDAGRAPH ENABLE_FUSED_MOE_ACTIVATION_CHUNKING
    ENABLE_MOE_ALIGN_BLOCK_SIZE_TRITON ENABLE_MOE_DP_CHUNK FLASHINFER_ALLREDUCE_FUSION_THRESHOLDS_MB
    FLASHINFER_DISABLE_Q_QUANTIZATION FLASHINFER_FORCE_TENSOR_CORES FLASHINFER_MOE_BACKEND
    FLASH_ATTN_MAX_NUM_SPLITS_FOR_CUDA_GRAPH FLASH_ATTN_VERSION FUSED_MOE_CHUNK_SIZE GPT_OSS_USE_CONTAINER_TOOL
    HPU_USE_DELAYED_SAMPLING INSTALL_PUNICA_KERNELS INSTANCE_ID LOGITS_PROCESSOR_THREADS MLA_DISABLE_REQUANTIZATION
    MLA_PERFORM_MATRIX_ABSORPTION MM_HASHER_ALGORITHM MM_INPUT_CACHE_GIB MM_INPUT_CACHE_SIZE MOE_DP_CHUNK_SIZE
    MORIIO_CONNECTOR_READ_MODE MORIIO_NUM_WORKERS MORIIO_POST_BATCH_SIZE MORIIO_QP_PER_TRANSFER MXFP4_USE_MARLIN
    NIXL_ABORT_REQUEST_TIMEOUT NO_DEPRECATION_WARNING NVFP4_GEMM_BACKEND OPENVINO_CPU_KV_CACHE_PRECISION
    OPENVINO_DEVICE OPENVINO_ENABLE_QUANTIZED_WEIGHTS OPENVINO_KVCACHE_SPACE PROFILER_DELAY_ITERS PROFILER_MAX_ITERS
    ROCM_CUSTOM_PAGED_ATTN ROCM_USE_AITER_PAGED_ATTN RPC_TIMEOUT SKIP_DEEP_GEMM_WARMUP SLEEP_WHEN_IDLE
    TEST_DYNAMO_FULLGRAPH_CAPTURE TEST_DYNAMO_GRAPH_CAPTURE TEST_FORCE_FP8_MARLIN TEST_USE_PRECOMPILED_NIGHTLY_WHEEL
    TORCH_CUDA_PROFILE TORCH_PROFILER_DIR TORCH_PROFILER_DISABLE_ASYNC_LLM TORCH_PROFILER_DUMP_CUDA_TIME_TOTAL
    TORCH_PROFILER_RECORD_SHAPES TORCH_PROFILER_USE_GZIP TORCH_PROFILER_WITH_FLOPS
    TORCH_PROFILER_WITH_PROFILE_MEMORY TORCH_PROFILER_WITH_STACK TPU_BUCKET_PADDING_GAP TPU_MOST_MODEL_LEN
    USE_AITER_UNIFIED_ATTENTION USE_CUDNN_PREFILL USE_DEEP_GEMM_E8M0_HOPPER USE_FBGEMM USE_FLASHINFER_MOE_FP16
    USE_FLASHINFER_MOE_FP4 USE_FLASHINFER_MOE_FP8 USE_FLASHINFER_MOE_MXFP4_BF16 USE_FLASHINFER_MOE_MXFP4_MXFP8
    USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS USE_HPU_CONTIGUOUS_CACHE_FETCH USE_NVFP4_CT_EMULATIONS
    USE_RAY_COMPILED_DAG_NCCL_CHANNEL USE_RAY_SPMD_WORKER USE_TRITON_FLASH_ATTN USE_TRTLLM_ATTENTION
    USE_TRTLLM_FP4_GEMM USE_TRTLLM_RAGGED_DEEPSEEK_PREFILL USE_V1 V0_USE_OUTLINES_CACHE
    V1_USE_PREFILL_DECODE_ATTENTION
"""
REMOVED_ENV = frozenset(f"VLLM_{name}" for name in _VARIABLES.split())
