"""What vLLM prints, from 0.3 (blocks) over 0.8 (tokens) to 0.31 (one record), its forks and plug-ins included.

Sources of the texts: vllm/v1/core/kv_cache_utils.py, vllm/v1/worker/gpu_worker.py, vllm/v1/worker/gpu_model_runner.py,
vllm/platforms/cuda.py, vllm/executor and vllm/worker (engine V0). "GB" of V0 is 2**30 bytes.
"""

from __future__ import annotations

from lcplan.engine.logs.patterns import fact

_SIZE = r"-?\d{1,9}(?:\.\d{1,12})?"
_UNIT = r" ?(?P<unit>GiB|GB|MiB|MB)"
_COUNT = r"-?\d{1,15}(?:,\d{3}){0,6}"

FACTS = (
    # The pool
    fact(
        "KV cache size: ",
        rf"\b(?!CPU)[A-Z]{{2,6}} KV cache size: (?P<kv_tokens>{_COUNT}) tokens",
        repeat="min",
        phase="pool",
    ),
    fact("CPU KV cache size: ", rf"\bCPU KV cache size: (?P<kv_tokens>{_COUNT}) tokens", 1, "min", "pool"),
    fact(
        "Maximum concurrency for ",
        r"Maximum concurrency for (?P<max_model_len>\d[\d,]{0,20}) tokens per request: "
        r"(?P<max_concurrency>-?\d[\d,]{0,12}(?:\.\d{1,6})?)x",
        repeat="min",
    ),
    fact(
        " blocks: ",
        rf"# (?!CPU)[A-Za-z]{{2,8}} blocks: (?P<gpu_blocks>{_COUNT})(?:, # CPU blocks: (?P<cpu_blocks>{_COUNT}))?",
        phase="pool",
    ),
    fact(
        "num_gpu_blocks is: ",
        rf"(?:Engine (?P<engine>\d{{1,6}}): [^:]{{0,120}})?num_gpu_blocks is: (?P<gpu_blocks>{_COUNT})",
    ),
    # 0 is what a profiling step starts from; any other number is the user's own override of the pool
    fact(
        "num_gpu_blocks_override=",
        r"Overriding num_gpu_blocks=(?!0\b)\d{1,12} with num_gpu_blocks_override=(?P<gpu_blocks>\d{1,12})",
        gpu_blocks_override=True,
    ),
    fact("Setting attention block size to ", r"Setting attention block size to (?P<block_size>\d{1,9}) tokens"),
    fact("Setting kv cache block size to ", r"Setting kv cache block size to (?P<block_size>\d{1,9}) for"),
    # Memory
    fact("Available KV cache memory: ", rf"Available KV cache memory: (?P<kv_memory_gib>{_SIZE}){_UNIT}", 0, "min"),
    fact("reserved for KV Cache is", rf"reserved for KV Cache is (?P<kv_memory_gib>{_SIZE}){_UNIT}", 0, "min"),
    fact(
        "memory for KV Cache as spec", rf"reserved (?P<kv_memory_gib>{_SIZE}){_UNIT} memory for KV Cache as", 0, "min"
    ),
    fact("kv_cache_size=", rf"kv_cache_size=(?P<kv_memory_gib>{_SIZE}){_UNIT}", 0, "min"),
    fact("Available memory: ", r"Available memory: (?P<kv_memory_bytes>-?\d{6,18}),? total memory", 0, "min"),
    fact(
        "Current kv cache memory in use is", rf"kv cache memory in use is (?P<kv_memory_gib>{_SIZE}){_UNIT}", 2, "min"
    ),
    fact(
        "Current kv cache memory in use is", r"kv cache memory in use is (?P<kv_memory_bytes>\d{4,18}) bytes", 2, "min"
    ),
    fact("Model loading took ", rf"Model loading took (?P<weights_gib>{_SIZE}){_UNIT}", 0, "first", "weights"),
    fact("Model loading took ", r"Model loading took .{1,60}? and (?P<took_weights>\d{1,6}(?:\.\d{1,9})?) sec"),
    fact("model weights took ", rf"Loading model weights took (?P<weights_gib>{_SIZE}){_UNIT}", 0, "first", "weights"),
    fact("model weights take ", rf"model weights take (?P<weights_gib>{_SIZE}){_UNIT}", 1, "min"),
    fact(" for weight", rf"(?P<weights_gib>{_SIZE}){_UNIT} for weight\b", 1, "min"),
    fact(" for peak activation", rf"(?P<activation_gib>{_SIZE}){_UNIT} for peak activation", 0, "min"),
    fact(
        "activation peak memory takes ", rf"activation peak memory takes (?P<activation_gib>{_SIZE}){_UNIT}", 0, "min"
    ),
    fact(" for non-torch memory", rf"(?P<non_torch_gib>{_SIZE}){_UNIT} for non-torch memory", 0, "min"),
    fact("non_torch_memory", rf"non_torch_memory(?: takes |=)(?P<non_torch_gib>{_SIZE}){_UNIT}", 0, "min"),
    fact("CUDA graph pool memory: ", rf"graph pool memory: (?P<cudagraph_gib>{_SIZE}){_UNIT} \(actual\)", 0, "min"),
    fact(" for CUDAGraph memory", rf"(?P<cudagraph_gib>{_SIZE}){_UNIT} for CUDAGraph memory", 1, "min"),
    fact("Graph capturing finished", rf"finished in .{{1,20}}?, took (?P<cudagraph_gib>{_SIZE}){_UNIT}", 2, "min"),
    fact(
        "Graph capturing finished",
        r"Graph capturing finished in (?P<took_graphs>\d{1,6}(?:\.\d{1,6})?) sec",
        phase="graphs",
    ),
    fact("gpu_memory_utilization", r"gpu_memory_utilization(?:=| \()(?P<gpu_mem_util>\d(?:\.\d{1,6})?)\b", 1),
    fact("GPU memory utilization (", r"GPU memory utilization \((?P<gpu_mem_util>\d(?:\.\d{1,6})?), ", 1),
    fact("GPU memory utilization is (", r"GPU memory utilization is \((?P<gpu_mem_util>\d(?:\.\d{1,6})?), ", 1),
    fact(
        "The current --gpu-memory-util",
        r"The current --gpu-memory-utilization=(?P<gpu_mem_util>\d(?:\.\d{1,6})?) is",
        1,
    ),
    # Context
    fact("Using max model len ", r"Using max model len (?P<max_model_len>\d{1,12})", 2),
    fact(
        "Auto-fit max_model_len: ",
        r"Auto-fit max_model_len: (?:reduced from \d{1,12} to|full model context length) (?P<max_model_len>\d{1,12})",
        1,
        max_model_len_fitted=True,
    ),
    # What the engine chose
    fact("KV cache format for", r"Using (?P<choice_kv_cache_dtype>\w{1,30}) KV cache format for"),
    fact("data type to store kv cache", r"Using (?P<choice_kv_cache_dtype>\w{1,30}) data type to store kv cache"),
    fact("Resolved architecture: ", r"Resolved architecture: (?P<choice_architecture>\w{1,80})"),
    fact(
        "attention backend out of",
        r"Using (?P<choice_attention_backend>[A-Z][A-Z0-9_]{1,60}) attention backend out of potential",
    ),
    fact("AttentionBackendEnum.", r"Using AttentionBackendEnum\.(?P<choice_attention_backend>\w{1,60}) backend"),
    fact("backend on V1 engine", r"Using (?P<choice_attention_backend>[A-Z][\w ]{1,40}) backend on V1 engine"),
    fact("Using FlashAttention version ", r"Using FlashAttention version (?P<choice_flash_attention_version>\d{1,3})"),
    fact("MLA prefill backend", r"Using (?P<choice_mla_prefill_backend>[A-Z][\w+-]{1,60}) MLA prefill backend"),
    fact(
        " MoE backend",
        r"Using '?(?P<choice_moe_backend>[A-Za-z][\w +/.-]{0,60}?)'? [A-Z]\w{2,12}(?: INT8)? MoE backend",
    ),
    fact("Using configuration from ", r"Using configuration from \S{1,400} for MoE layer", moe_tuning="tuned"),
    fact("Using default MoE", r"Using default MoE (?:kernel )?config\.", moe_tuning="default"),
    fact("Falling back to AllGather", r"no --enable-expert-parallel\. Falling back", dp_without_ep=True),
    fact(
        "Chunked prefill is enabled",
        r"with max_num_batched_tokens=(?P<choice_max_num_batched_tokens>\d{1,9})",
        chunked_prefill=True,
    ),
    fact("Asynchronous scheduling is ", r"Asynchronous scheduling is enabled", async_scheduling=True),
    fact("Asynchronous scheduling is ", r"Asynchronous scheduling is disabled", async_scheduling=False),
    fact("Enforce eager set", r"Enforce eager set", enforce_eager=True),
    fact("Using V2 Model Runner", r"Using V2 Model Runner", model_runner="V2"),
    fact("Starting to load model ", r"Starting to load model ", model_runner="V1"),
    fact(
        "Model Runner V2 does not", r"Model Runner V2 does not yet support [^;]{1,200}; using the V1", model_runner="V1"
    ),
    fact("Defaulting api_server_count", r"api_server_count to \w{1,40} \((?P<choice_api_server_count>\d{1,5})\)"),
    fact("API server processes", r"Started (?P<choice_api_server_count>\d{1,5}) API server processes"),
    fact("vLLM is using nccl==", r"vLLM is using nccl==(?P<choice_nccl>[\w.]{1,30})"),
    fact("Mamba cache mode is set to", r"Mamba cache mode is set to '(?P<choice_mamba_cache_mode>\w{1,30})'"),
    # Phases
    fact("  version ", r"█\s{1,4}version (?P<engine_version>\d[\w.+]{1,60})", phase="start"),
    fact("vLLM API server version ", r"vLLM API server version (?P<engine_version>\d[\w.+]{1,60})", phase="start"),
    fact("vLLM server version ", r"vLLM server version (?P<engine_version>\d[\w.+]{1,60})", phase="start"),
    fact(" LLM engine (v", r"LLM engine \(v(?P<engine_version>\d[\w.+]{1,60})\)", phase="engine"),
    fact("Loading weights took ", r"Loading weights took (?P<took_read_weights>\d{1,6}(?:\.\d{1,6})?) seconds"),
    fact("torch.compile took", r"torch\.compile takes? ?(?:took )?(?P<took_compile>\d{1,6}(?:\.\d{1,6})?) s"),
    fact(
        "init engine (",
        r"init engine \(.{1,80}?took (?P<took_init_engine>\d{1,6}(?:\.\d{1,6})?) s",
        phase="engine_ready",
    ),
    fact("Starting vLLM ", r"Starting vLLM (?:API )?server .{0,20}?on (?:https?|unix):", phase="listening"),
)
