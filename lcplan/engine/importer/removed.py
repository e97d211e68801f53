"""What vLLM once had and 0.31 has no more. Sources: arg_utils.py, cli_args.py and envs.py of vLLM 0.3 to 0.30."""

from __future__ import annotations

from collections.abc import Mapping

# flag -> whether it took a value
REMOVED_FLAGS: Mapping[str, bool] = {
    **dict.fromkeys(
        (
            *("rope-scaling", "rope-theta", "num-scheduler-steps", "scheduler-delay-factor", "num-lookahead-slots"),
            *("preemption-mode", "device", "guided-decoding-backend", "speculative-model", "num-speculative-tokens"),
            *("speculative-draft-tensor-parallel-size", "speculative-max-model-len", "speculative-model-quantization"),
            *("speculative-disable-by-batch-size", "ngram-prompt-lookup-max", "ngram-prompt-lookup-min"),
            *("spec-decoding-acceptance-method", "typical-acceptance-sampler-posterior-threshold"),
            *("typical-acceptance-sampler-posterior-alpha", "qlora-adapter-name-or-path", "max-context-len-to-capture"),
            *("max-prompt-adapters", "max-prompt-adapter-token", "prompt-adapters", "long-lora-scaling-factors"),
            *("lora-extra-vocab-size", "swap-space", "task", "override-neuron-config", "override-pooler-config"),
            *("tokenizer-pool-size", "tokenizer-pool-type", "tokenizer-pool-extra-config", "image-input-type"),
            *("image-token-id", "image-feature-size", "image-input-shape", "max-num-partial-prefills"),
            *("max-long-partial-prefills", "cuda-graph-sizes", "num-redundant-experts", "eplb-window-size"),
            *("eplb-step-interval", "quantization-param-path", "max-seq-len-to-capture", "logits-processor-pattern"),
        ),
        True,
    ),
    **dict.fromkeys(
        (
            *("enable-reasoning", "disable-log-requests", "use-v2-block-manager", "worker-use-ray", "engine-use-ray"),
            *(
                "multi-step-stream-outputs",
                "guided-decoding-disable-fallback",
                "guided-decoding-disable-any-whitespace",
            ),
            *("guided-decoding-disable-additional-properties", "speculative-disable-mqa-scorer"),
            *("disable-logprobs-during-spec-decoding", "enable-prompt-adapter", "disable-mm-preprocessor-cache"),
            *("disable-frontend-multiprocessing", "disable-async-output-proc", "full-cuda-graph", "enable-lora-bias"),
            *("eplb-log-balancedness", "enable-microbatching", "calculate-kv-scales"),
        ),
        False,
    ),
}

REMOVED_ENV = frozenset(
    ("VLLM_ATTENTION_BACKEND", "VLLM_USE_V1", "VLLM_USE_TRITON_FLASH_ATTN", "VLLM_V1_USE_PREFILL_DECODE_ATTENTION")
)
