"""How a launch fails: the lines that say so, by class, and what a user can do about each class.

A cause wins over its consequences: the tiers are cause, unknown exception, died process, failed engine.
"""

from __future__ import annotations

from lcplan.engine.logs.patterns import fault

_GIB = r"-?\d{1,9}(?:\.\d{1,6})?"
_HUB = r"huggingface\.co/(?:api/models/)?(?P<model>[\w-][\w.-]{0,95}/[\w-][\w.-]{0,94}[\w-])"
_PROGRAM = r"(?:^|[\s\]])(?:vllm|sglang|[\w.-]{1,60}\.py)(?: [a-z][\w-]{0,30})?: error: "

FAULTS = (
    # Memory of the GPU
    fault(
        "memory_not_free",
        "Free memory on device",
        r"Free memory on device(?: (?P<device>\w{1,20}:\d{1,3}))? "
        rf"\((?P<free_gib>{_GIB})/(?P<total_gib>{_GIB}) GiB\) on startup is less than desired GPU memory utilization "
        rf"\([\d.]{{1,9}}, (?P<wanted_gib>{_GIB}) GiB\)",
    ),
    fault("memory_not_free", "Error in memory profiling"),
    fault("memory_not_free", "memory capacity is unbalanced", r"Error: The memory capacity is unbalanced"),
    fault(
        "kv_too_small",
        "To serve at least one request",
        r"To serve at least one request with the models?'?s? max seq len \((?P<max_model_len>\d{1,12})\)"
        rf"(?:, \(?(?P<needed_gib>{_GIB}) GiB KV cache is needed, which is larger than the available KV cache memory "
        rf"\((?P<available_gib>{_GIB}) GiB\))?"
        r"(?:\.\s{1,3}Based on the available memory, the estimated maximum model length is "
        r"(?P<estimated_max_len>\d{1,12}))?",
        max_model_len="max_model_len",
        available_gib="kv_memory_gib",
    ),
    fault(
        "kv_too_small",
        "that can be stored in KV cache (",
        r"max seq len \((?P<max_model_len>\d{1,12})\) is larger than the maximum number of tokens that can be stored "
        r"in KV cache \((?P<fits_tokens>-?\d{1,12})\)",
        max_model_len="max_model_len",
        fits_tokens="stored_tokens",
    ),
    fault(
        "kv_too_small", "cannot hold even one request", r"SWA pool \((?P<fits_tokens>-?\d{1,12}) tokens\) cannot hold"
    ),
    fault(
        "kv_too_small",
        "maximum allowed length (",
        r"(?:nput(?: length)? \((?P<input_tokens>\d{1,12}) tokens\).{0,60}? )?maximum allowed length "
        r"\((?P<fits_tokens>-?\d{1,12}) tokens\)",
        any_level=True,
        serving=True,
        fits_tokens="allowed_tokens",
    ),
    fault("kv_no_memory", "No available memory for the cache blocks"),
    fault("kv_no_memory", "Cannot auto-fit max_model_len"),
    fault("kv_no_memory", "Not enough memory. Please try to increase --mem-fraction-static"),
    fault("kv_no_memory", "Loaded weights leave no GPU memory for the KV cache"),
    fault(
        "mamba_cache_blocks",
        "available Mamba cache blocks",
        r"max_num_seqs \((?P<max_num_seqs>\d{1,9})\) exceeds available Mamba cache blocks \((?P<allowed>-?\d{1,9})\)",
        max_num_seqs="max_num_seqs",
    ),
    fault(
        "mamba_cache_blocks",
        "state cache is too small to serve any requests",
        r"state cache is too small to serve any requests(?:.{0,200}?max_num_reqs=(?P<allowed>-?\d{1,9}))?",
    ),
    fault("req_slots_exhausted", "alloc_req_slots runs out of memory", serving=True),
    fault(
        "oom",
        "out of memory occurred when",
        r"out of memory occurred when warming up (?P<where>\w{1,30})"
        r"(?: with (?P<dummy_requests>\d{1,9}) dummy requests)?",
        dummy_requests="max_num_seqs",
    ),
    fault("oom", "Failed to load model - not enough GPU memory"),
    fault("oom", "OutOfMemoryError"),
    fault("oom", "out of memory. Try to lower", r"(?:Prefill|Decode) out of memory\. Try to lower", serving=True),
    fault("oom", "out of memory", r"(?:CUDA|HIP|NPU|XPU)(?: error:| driver error:)? ?out of memory"),
    # Model and arguments
    fault(
        "max_model_len_above_model",
        "greater than the derived",
        r"(?:(?<!Warning: )|(?<=Error: Warning: )|(?=.{0,800}To allow overriding))"
        r"User-specified (?:max_model_len|context_length) \((?P<max_model_len>\d{1,15})\) is "
        r"greater than the derived (?:max_model_len|context_length) \((?:[a-z_]{1,60}=)?(?P<model_max>\d{1,15})",
        max_model_len="max_model_len",
    ),
    fault(
        "unsupported_model",
        "rchitecture",
        r"does not recognize this architecture|[Aa]rchitectures? .{1,200}?(?:(?:is|are) not supported|failed to be "
        r"inspected|has no (?:vLLM|SGLang|native) implementation)|Unsupported architectures?",
    ),
    fault("unsupported_model", " implementation", r"has no (?:vLLM|SGLang|SGlang|native) implementation"),
    fault("unsupported_model", "Unrecognized model in", r"Unrecognized model in \S{1,200}"),
    fault("gated_model", "gated repo"),
    fault("gated_model", "GatedRepoError"),
    fault("gated_model", "is restricted", r"Access to model (?P<model>[\w.-]{1,96}/[\w.-]{1,96}) is restricted"),
    fault("gated_model", "have access to it at", rf"have access to it at https://{_HUB}"),
    fault(
        "gated_model",
        " Client Error",
        r"\b(?P<http>401|403) Client Error"
        rf"(?:: (?:Forbidden|Unauthorized) for url: \S{{0,20}}?{_HUB}|(?!.{{0,40}}for url))",
    ),
    fault("gated_model", "for url", rf"(?:Cannot access|Repository Not Found).{{1,60}}? for url:? https://{_HUB}"),
    fault("bad_flag", "unrecognized arguments: ", r"\berror: unrecognized arguments: (?P<arguments>\S.{0,4000})"),
    fault(
        "bad_flag",
        "error: argument ",
        r"\berror: argument (?P<arguments>-[\w.-]{1,100})[^:\s]{0,100}"
        r"(?:: invalid \w{1,60}(?: value)?: '(?P<value>[^']{0,200})')?",
    ),
    fault("bad_flag", ": error: ", rf"{_PROGRAM}ambiguous option: (?P<arguments>\S{{1,200}})"),
    fault("bad_flag", ": error: ", rf"{_PROGRAM}the following arguments are required: (?P<arguments>\S.{{0,400}})"),
    fault("bad_flag", ": error: ", rf"{_PROGRAM}\S"),
    fault("bad_flag", "unknown flag: ", r"^(?:docker: )?unknown flag: (?P<arguments>\S{1,200})"),
    fault(
        "bad_flag",
        "must be greater than or equal to max_num_seqs",
        r"max_num_batched_tokens \((?P<max_num_batched_tokens>\d{1,9})\) must be greater than or equal to max_num_seqs "
        r"\((?P<max_num_seqs>\d{1,9})\)",
        max_num_seqs="max_num_seqs",
    ),
    fault(
        "bad_parallel_size",
        "not divisible by weight quantization",
        r"= (?P<value>\d{1,12}) is not divisible by weight quantization block_?\w{0,10} = (?P<block>\d{1,9})",
    ),
    fault("bad_parallel_size", " is not divisible by ", r"(?P<value>\d{1,12}) is not divisible by (?P<tp>\d{1,6})\b"),
    fault(
        "bad_parallel_size",
        "divisible by tensor parallel size",
        r"\((?P<value>\d{1,12})\) must be divisible by tensor parallel size \((?P<tp>\d{1,6})\)",
    ),
    fault("bad_parallel_size", "divisible by dcp_size", r"tp_size=(?P<tp>\d{1,6}) must be divisible by dcp_size"),
    fault("bad_parallel_size", "divisible by", r"Error: .{0,200}?\b(?:tp|pp|dp|ep|attn_tp)_size\b.{0,80}?divisible by"),
    fault("bad_parallel_size", "not aligned with the quantized", r"not aligned with the quantized weight shape"),
    fault("not_enough_gpus", "is out of bounds", r"DP adjusted local rank \d{1,6} is out of bounds"),
    fault(
        "not_enough_gpus",
        "number of available GPUs",
        r"size \(\d{1,6}\) (?:is|cannot be) larger than the number of available GPUs",
    ),
    fault("not_enough_gpus", "invalid device ordinal"),
    fault(
        "not_enough_gpus", "total number of available GPUs", r"required .{1,20} exceeds the total number of available"
    ),
    # Machine
    fault(
        "port_in_use",
        "ddress already in use",
        r"(?:(?:port[:\s]{1,3}|\('?[\w.:*]{1,60}'?, |[\w.\]]:)(?P<port>\d{2,5})\b.{0,120}?)?[Aa]ddress already in use",
    ),
    fault(
        "port_in_use", "is already allocated", r"Bind for \S{1,60}?:(?P<port>\d{2,5}) failed: port is already allocated"
    ),
    fault("port_in_use", " is already in use", r"[Pp]ort (?P<port>\d{2,5}) is already in use(?!,? trying)"),
    fault("port_in_use", " is not available", r"port at (?P<port>\d{2,5}) is not available"),
    fault("gpu_missing", "Failed to initialize NVML"),
    fault("gpu_missing", "No CUDA GPUs are available"),
    fault("gpu_missing", "Error from cudaGetDeviceCount"),
    fault("gpu_missing", "error from cudaGetDeviceCount"),
    fault("gpu_missing", "system not yet initialized"),
    fault("gpu_missing", "NVIDIA-SMI has failed"),
    fault("gpu_missing", "no CUDA-capable device is detected"),
    fault("gpu_missing", "Found no NVIDIA driver on your system"),
    fault("gpu_missing", "Failed to infer device type"),
    fault("gpu_missing", "could not select device driver"),
    fault("gpu_missing", "unknown or invalid runtime name: nvidia"),
    fault("gpu_missing", "nvidia-container-cli: ", r"nvidia-container-cli: \w{1,40} error"),
    fault(
        "container_name_conflict",
        "ontainer name ",
        r"ontainer name \"/?(?P<name>[\w.-]{1,200})\" is already in use",
    ),
    fault(
        "container_name_conflict", "is already used by ID", r"name \"/?(?P<name>[\w.-]{1,200})\" is already used by ID"
    ),
    fault(
        "image_pull",
        "failed to resolve reference",
        r"(?:Image (?:\S{1,300}) .{0,20}?)?failed to resolve reference \"?(?P<image>[^\s\"]{1,300})\"?",
    ),
    fault("image_pull", "anifest for ", r"manifest for (?P<image>\S{1,300}) not found"),
    fault("image_pull", "pull access denied for ", r"pull access denied for (?P<image>[^\s,]{1,300})"),
    fault("image_pull", "Failed to pull image", r"Failed to pull image \"(?P<image>[^\s\"]{1,300})\""),
    fault("image_pull", "manifest unknown"),
    fault("image_pull", "No such image: ", r"No such image: (?P<image>\S{1,300})"),
    fault("image_pull", "requested access to the resource is denied"),
    fault("image_pull", "toomanyrequests: "),
    fault(
        "image_pull", "ImagePullBackOff", r"(?:ImagePullBackOff|Back-off pulling image \"(?P<image>[^\s\"]{1,300})\")"
    ),
    # Consequences
    fault("worker_died", "Received sigquit from a child", tier="died", any_level=True),
    fault("worker_died", "It usually means one child failed", tier="died", any_level=True),
    fault(
        "worker_died",
        "crashed with exit code ",
        r"Subprocess \S{1,80} .{0,30}?crashed with exit code -?\d",
        "died",
        True,
    ),
    fault("worker_died", "died during initialization", r"scheduler died during initialization", "died", True),
    fault("worker_died", "scheduler is dead", r"\bscheduler is dead\b", "died", True),
    fault(
        "worker_died",
        "died unexpectedly",
        r"(?:[Ww]orker|[Ee]ngine core) proc \S{1,80} died unexpectedly",
        "died",
        True,
    ),
    fault("worker_died", "exited unexpectedly", r"engine core exited unexpectedly", "died", True),
    fault("worker_died", "orker died or was killed", r"[Ww]orker died or was killed", "died", True),
    fault("worker_died", " died, exit code", tier="died", any_level=True),
    fault("worker_died", "Engine process (pid ", r"Engine process \(pid \d{1,10}\) died", "died", True),
    fault("worker_died", "ActorDiedError", tier="died"),
    fault("engine_failed", "EngineCore encountered a", r"EngineCore encountered a fatal error", "failed"),
    fault("engine_failed", "AsyncLLM output_handler failed", tier="failed"),
    fault("engine_failed", "EngineCore failed to start", tier="failed"),
    fault("engine_failed", "WorkerProc failed to start", tier="failed"),
    fault("engine_failed", "WorkerProc initialization failed", tier="failed"),
    fault("engine_failed", "ngine core initialization failed", tier="failed"),
    fault("engine_failed", "EngineDeadError", tier="failed"),
    fault("engine_failed", "ngine process failed to start", tier="failed"),
    fault("engine_failed", "Initialization failed. warmup error", tier="failed"),
    fault("engine_failed", "Scheduler hit an exception", tier="failed"),
    fault("engine_failed", "Capture cuda graph failed", tier="failed"),
)
GENERIC = frozenset({"oom", "port_in_use", "gpu_missing", "container_name_conflict", "image_pull", "bad_flag"})
