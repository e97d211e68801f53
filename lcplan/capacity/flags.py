"""What an engine's flags resolve to for the arithmetic of its pool: defaults by version and GPU, and derived values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lcplan.base.layout import Layout
from lcplan.capacity.gpus import Gpu
from lcplan.capacity.shapes import Latent, Model

_BYTES = {"float32": 4.0, "float": 4.0, "bfloat16": 2.0, "float16": 2.0, "half": 2.0, "bf16": 2.0, "fp16": 2.0}
NEWEST = (0, 31, 0)  # of vLLM: what is assumed when no version is named


@dataclass(frozen=True, slots=True)
class Vllm:
    """vLLM's settings for one launch. `kv_bytes` is the size of a KV element; `align` the least step of a block."""

    version: tuple[int, ...]
    gpu: Gpu | None
    tp: int
    pp: int
    dp: int
    ep: bool
    dcp: int
    utilization: float
    max_model_len: int
    batched_tokens: int
    sequences: int
    kv_bytes: float
    kv_dtype: str
    block: int
    align: int
    draft: bool
    draft_known: bool  # whether the draft's layers are in the model's own config.json, or there is none
    draft_tokens: int
    state_mode: str  # of recurrent states: none, align or all
    ssm_dtype: str
    hybrid: bool  # whether the hybrid KV cache manager is on
    in_flight: int  # tokens that sliding windows keep beyond the window
    eager: bool
    dtype: str
    quantization: str
    blocks_override: int
    kv_memory: float  # GiB given by --kv-cache-memory-bytes, 0: not given
    language_only: bool


def vllm(model: Model, version: str, gpu: Gpu | None, layout: Layout, flags: Mapping[str, Any]) -> Vllm:
    """Return what vLLM makes of its flags. Flags win over the layout, which only fills in what they leave open."""
    at = numbers(version) or NEWEST
    tp, pp = integer(flags, "tensor-parallel-size", layout.tp), integer(flags, "pipeline-parallel-size", layout.pp)
    spec = flags.get("speculative-config")
    spec = spec if isinstance(spec, Mapping) else {}
    method = str(spec.get("method", ""))
    # arg_utils: larger batches on larger GPUs, which an unknown one is taken for.
    large = gpu is None or (gpu.memory >= 70 and "A100" not in gpu.name)
    length = integer(flags, "max-model-len", 0)
    kv_dtype = str(flags.get("kv-cache-dtype") or "auto")
    if kv_dtype == "auto" and at >= (0, 13):
        kv_dtype = checkpoint_kv_dtype(model)
    dtype = model_dtype(model, flags)
    batched = integer(flags, "max-num-batched-tokens", 8192 if large else 2048)
    if at < (0, 8) and "max-num-batched-tokens" not in flags and not flags.get("enable-chunked-prefill"):
        batched = max(2048, length or _longest(model))  # before V1 a prompt was one batch
    if model.latent and kv_dtype.startswith("fp8") and _indexed(model):
        kv_dtype = "fp8_ds_mla"
    return Vllm(
        version=at,
        gpu=gpu,
        tp=tp,
        pp=pp,
        dp=integer(flags, "data-parallel-size", layout.dp),
        ep=bool(flags.get("enable-expert-parallel", layout.ep > 1)),
        dcp=integer(flags, "decode-context-parallel-size", layout.dcp),
        utilization=number(flags, "gpu-memory-utilization", 0.92 if at >= (0, 25) else 0.9),
        max_model_len=length if length > 0 else _longest(model) or 2048,
        batched_tokens=batched,
        sequences=integer(flags, "max-num-seqs", 1024 if large and at >= (0, 8) else 256),
        kv_bytes=kv_size(kv_dtype, dtype),
        kv_dtype=kv_dtype,
        block=_block(model, kv_dtype, gpu, flags),
        align=_align(model, kv_dtype, gpu, flags),
        draft="mtp" in method or "eagle" in method,
        draft_known=not spec or method in ("ngram", "suffix") or ("mtp" in method and bool(model.draft)),
        draft_tokens=integer(spec, "num_speculative_tokens", 0),
        state_mode=_state_mode(model, at, flags),
        ssm_dtype=str(flags.get("mamba-ssm-cache-dtype") or "auto"),
        hybrid=at >= tuple(model.traits.get("hybrid_from", (0, 10)))
        and not flags.get("disable-hybrid-kv-cache-manager"),
        in_flight=batched * _batches(at, pp, flags),
        eager=_eager(flags),
        dtype=dtype,
        quantization=str(flags.get("quantization") or ""),
        blocks_override=integer(flags, "num-gpu-blocks-override", 0),
        kv_memory=integer(flags, "kv-cache-memory-bytes", 0) / 2**30,
        language_only=bool(flags.get("language-model-only")),
    )


def numbers(version: str) -> tuple[int, ...]:
    """Return a version as numbers, `(0, 25, 1)` of "v0.25.1rc1"; () for none.

    Of several ("0.9.2/0.10") the first counts; a digit left open ("0.2x") is taken in the middle.
    """
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", re.sub(r"(?<=\d)x", "5", version))
    return tuple(int(part or 0) for part in found.groups()) if found else ()


def kv_size(kv_dtype: str, dtype: str) -> float:
    """Return bytes per KV element."""
    if kv_dtype.startswith(("fp8", "int8")):
        return 1.0
    if kv_dtype.startswith(("nvfp4", "fp4")):
        return 0.5 + 1 / 16  # four bits and one fp8 scale per 16 elements
    return _BYTES.get(dtype if kv_dtype == "auto" else kv_dtype, 2.0)


def element(dtype: str) -> float:
    """Return bytes per element of a model's dtype."""
    return _BYTES.get(dtype, 2.0)


def model_dtype(model: Model, flags: Mapping[str, Any]) -> str:
    """Return the dtype that a model is served in."""
    given = str(flags.get("dtype") or "auto").removeprefix("torch.")
    if given != "auto":
        return given
    return "float16" if model.dtype in ("float32", "float") else model.dtype  # auto never serves in float32


def checkpoint_kv_dtype(model: Model) -> str:
    """Return the KV dtype that `auto` means for a checkpoint which was calibrated for one, else `auto`."""
    given = model.config.get("quantization_config")
    if not isinstance(given, Mapping):
        return "auto"
    wrapped = given.get("quantization")
    inner = wrapped if isinstance(wrapped, Mapping) else given
    scheme = inner.get("kv_cache_scheme") or given.get("kv_cache_scheme")
    eight = isinstance(scheme, Mapping) and scheme.get("num_bits") == 8 and scheme.get("type", "float") == "float"
    named = str(inner.get("kv_cache_quant_algo") or "").upper()
    return "fp8" if eight or named == "FP8" else "auto"


def _longest(model: Model) -> int:
    """The context without --max-model-len (vllm/config/model.py): stretched by scaling that is not counted in yet."""
    if isinstance(model.text.get("model_max_length"), int):
        return int(model.text["model_max_length"])
    scaling = model.text.get("rope_scaling") or model.text.get("rope_parameters")
    if not isinstance(scaling, Mapping) or model.family.startswith("gemma3"):
        return model.context
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    if kind in ("default", "su", "longrope", "llama3", "mrope"):
        return model.context
    length = scaling.get("original_max_position_embeddings") if kind == "yarn" else None
    return int((length or model.context) * float(scaling.get("factor") or 1))


def _eager(flags: Mapping[str, Any]) -> bool:
    """Whether neither compilation nor graphs are on."""
    compiled = flags.get("compilation-config")
    modes = compiled if isinstance(compiled, Mapping) else {}
    plain = modes.get("cudagraph_mode") == "NONE" and modes.get("mode", modes.get("level")) in (0, "NONE")
    return bool(flags.get("enforce-eager")) or str(flags.get("optimization-level")) == "0" or plain


def _indexed(model: Model) -> bool:
    return any(isinstance(c, Latent) and c.index and c.pool == 1 for layer in model.layers for c in layer)


def _block(model: Model, kv_dtype: str, gpu: Gpu | None, flags: Mapping[str, Any]) -> int:
    given = integer(flags, "block-size", 0)
    if given:
        return given
    if model.family == "deepseek_v4":
        return 256
    capability = gpu.capability if gpu else 9.0
    if not model.latent:
        return 16
    if _indexed(model):
        return 64  # sparse MLA
    if capability >= 10 and capability < 12:
        return 64 if capability else 16
    # On Hopper FLASH_ATTN_MLA serves bf16 in blocks of 16; FLASHMLA, of 64, is what takes fp8.
    return 64 if kv_dtype.startswith("fp8") and capability == 9.0 else 16


def _align(model: Model, kv_dtype: str, gpu: Gpu | None, flags: Mapping[str, Any]) -> int:
    step = _block(model, kv_dtype, gpu, flags)
    return max(128, step) if model.latent else max(16, step)


def _state_mode(model: Model, at: tuple[int, ...], flags: Mapping[str, Any]) -> str:
    caching = flags.get("enable-prefix-caching")
    if caching is None:
        caching = at >= (0, 26) or bool(model.traits.get("prefix_caching"))
    if not caching:
        return "none"
    mode = str(flags.get("mamba-cache-mode") or "align")
    return "align" if mode in ("auto", "none") else mode


def _batches(at: tuple[int, ...], pp: int, flags: Mapping[str, Any]) -> int:
    if at < (0, 26):  # one batch was counted, whatever runs ahead; seen in 0.19 and 0.25.1
        return 1
    return pp + 1 if flags.get("async-scheduling") is not False else pp


def integer(flags: Mapping[str, Any], name: str, default: int) -> int:
    """Return a flag's whole number, or the default when it is not given or no number."""
    return int(number(flags, name, default))


def number(flags: Mapping[str, Any], name: str, default: float) -> float:
    """Return a flag's number, or the default when it is not given or no number (`--max-model-len auto`)."""
    value = flags.get(name)
    return default if value is None or isinstance(value, (bool, str)) else float(value)
