"""What SGLang prints, from 0.4.0 to 0.5.21. "GB" is 2**30 bytes.

Sources of the texts: sglang/srt/managers/scheduler.py, sglang/srt/model_executor/model_runner.py and
pool_configurator.py, sglang/srt/mem_cache/memory_pool.py, sglang/srt/mem_cache/kv_cache_configurator.py.
"""

from __future__ import annotations

from lcplan.engine.logs.patterns import fact

_SIZE = r"-?\d{1,9}(?:\.\d{1,12})?"
_UNIT = r" ?(?P<unit>GB|GiB|MB|MiB)"

FACTS = (
    # The summary. A number around '->' is a sizing step's profiled value, not the pool
    fact(
        "max_total_num_tokens",
        r"(?<!->)(?<!-> )max_total_num_tokens(?:=|: ?| )(?P<kv_tokens>-?\d{1,15})(?!\d| ?->)",
        phase="pool",
    ),
    fact("max_total_num_tokens", r"max_total_num_tokens.{0,160}?max_running_requests=(?P<max_num_seqs>\d{1,9})"),
    fact("max_total_num_tokens", r"max_total_num_tokens.{0,200}?context_len=(?P<max_model_len>\d{1,12})"),
    fact(
        "max_total_num_tokens",
        r"max_total_num_tokens.{0,80}?chunked_prefill_size=(?P<choice_chunked_prefill_size>-?\d{1,9})",
    ),
    fact(
        "max_total_num_tokens",
        r"max_total_num_tokens.{0,120}?max_prefill_tokens=(?P<choice_max_prefill_tokens>\d{1,9})",
    ),
    fact("max_running_requests is capped", r"max_running_requests is capped to (?P<max_num_seqs>\d{1,9})", 1),
    fact(
        "reduced from the requested ",
        r"max_running_requests (?:was )?reduced from the requested \d{1,9} to (?P<max_num_seqs>\d{1,9})",
        1,
    ),
    fact("max_num_reqs", r"max_num_reqs(?:=|: ?)(?P<max_num_seqs>\d{1,9})", 1),
    # Pools
    fact("full_layer_tokens=", r"full_layer_tokens=(?P<pool_full>-?\d{1,15})"),
    fact("swa_layer_tokens=", r"swa_layer_tokens=(?P<pool_swa>-?\d{1,15})"),
    fact(" swa_tokens=", r" swa_tokens=(?P<pool_swa>\d{1,15})", 2),
    fact("SWAKVPool ", r"swa size: (?P<pool_swa>\d{1,15}), full size: (?P<pool_full>\d{1,15})", 1),
    fact(
        " pool sizes: full=",
        r"pool sizes: full=(?P<pool_full>-?\d{1,15})(?:, swa=(?P<pool_swa>-?\d{1,15}))?"
        r"(?:, c4=(?P<pool_c4>-?\d{1,15}))?(?:, c128=(?P<pool_c128>-?\d{1,15}))?"
        r"(?:, c4_state=(?P<pool_c4_state>-?\d{1,15}))?(?:, c128_state=(?P<pool_c128_state>-?\d{1,15}))?",
    ),
    fact("full_token=", r"\bfull_token=(?P<pool_full>-?\d{1,15})", 2),
    fact("max_mamba_cache_size", r"max_mamba_cache_size(?:: ?|=| )(?P<pool_mamba>\d{1,12})"),
    fact("available_bytes=", rf"available_bytes=(?P<kv_memory_gib>{_SIZE}){_UNIT}"),
    # Memory
    fact(
        "Load weight end",
        rf"Load weight end\..{{0,300}}?mem usage=(?P<weights_gib>{_SIZE}){_UNIT}",
        0,
        "first",
        "weights",
    ),
    fact("Load weight end", r"Load weight end\. elapsed=(?P<took_weights>\d{1,6}(?:\.\d{1,6})?) s", 0, "first"),
    fact("Load weight end", r"Load weight end\..{0,40}?type=(?P<choice_architecture>\w{1,80})", 0, "first"),
    fact("Load weight end", r"Load weight end\..{0,120}?quant=(?P<choice_quantization>[\w-]{1,40})", 0, "first"),
    fact("Load weight end", r"Load weight end\..{0,160}?dtype=torch\.(?P<choice_dtype>\w{1,40})", 0, "first"),
    fact(
        "raph end",
        r"Capture (?:target )?(?:decode )?(?:cuda|CUDA) graph end\..{0,120}?"
        rf"mem usage=(?P<cudagraph_gib>{_SIZE}){_UNIT}",
        0,
        "first",
        "graphs",
    ),
    fact(
        "raph end",
        r"Capture (?!draft)(?:target )?(?:verify|prefill|piecewise|target_verify) (?:cuda|CUDA) graph end\..{0,120}?"
        rf"mem usage=(?P<cudagraph_gib>{_SIZE}){_UNIT}",
        1,
        "first",
    ),
    fact("mem_fraction_static=", r"mem_fraction_static=(?P<gpu_mem_util>\d(?:\.\d{1,6})?)\b", 1),
    fact("under --mem-fraction-static=", r"under --mem-fraction-static=(?P<gpu_mem_util>\d(?:\.\d{1,6})?)\b", 1),
    # What the engine chose
    fact("Using KV cache dtype: ", r"Using KV cache dtype: (?P<choice_kv_cache_dtype>[\w.]{1,40})"),
    fact("KV Cache is allocated", r"KV Cache is allocated\. dtype: (?P<choice_kv_cache_dtype>[\w.]{1,40})", 0, "first"),
    fact(
        "Attention backend not spec",
        r"not specified\. Use (?P<choice_attention_backend>[\w-]{1,40}) backend by default",
    ),
    fact("Tree cache initialized: ", r"impl=(?P<choice_tree_cache>\w{1,60})"),
    fact(
        "Setting max_running_requests to", r"Setting max_running_requests to (?P<choice_max_running_requests>\d{1,9})"
    ),
    fact("Disable prefill CUDA graph", r"Disable prefill CUDA graph", prefill_cuda_graph=False),
    # Phases
    fact("Init torch distributed begin", r"Init torch distributed begin", phase="engine"),
    fact("Init parallel begin", r"Init parallel begin", phase="engine"),
    fact("Engine startup timings", r"scheduler_e2e=(?P<took_init_engine>\d{1,6}(?:\.\d{1,6})?)", phase="engine_ready"),
    fact("Uvicorn running on ", r"Uvicorn running on https?:", phase="listening"),
)
