"""Bytes of weights on one rank, counted from a config.json: every matrix, how it is sharded, and how it is quantised.

Shapes follow vLLM's model definitions (vllm/model_executor/models); the sizes agree with "Model loading took" of real
servers within about 1 %, which the tests check.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lcplan.capacity.flags import element
from lcplan.capacity.shapes import Attention, Cache, Compressed, Latent, Model, State

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Sharding:
    """How weights are spread: `tp` ranks share a matrix, `experts` ranks share the routed experts."""

    tp: int = 1
    experts: int = 1


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight matrix (or many equal ones). `split` is tp, experts or none; `plain` ones are never quantised."""

    name: str
    count: float  # elements in all
    split: str = "tp"
    plain: bool = False


def weights(
    model: Model,
    stage: range,
    stages: int,
    sharding: Sharding,
    *,
    dtype: str,
    quantization: str = "",
    draft: bool = False,
) -> float:
    """Return GiB of weights on one rank of the pipeline stage that holds the layers `stage`.

    `quantization` is the engine's flag for quantising while loading; a checkpoint's own `quantization_config` wins.
    """
    scheme = scheme_of(model.config, quantization)
    full = element(dtype)
    total = 0.0
    for matrix in matrices(model, stage, stages, draft=draft):
        ranks = {"tp": sharding.tp, "experts": sharding.experts, "none": 1}[matrix.split]
        size = full if matrix.plain or scheme.skips(matrix.name) else scheme.size(matrix.name, full)
        padding = _padded(model, sharding) if scheme.only_experts and matrix.split == "experts" else 1.0
        total += matrix.count / ranks * size * padding
    return total / GIB


def _padded(model: Model, sharding: Sharding) -> float:
    # MXFP4 kernels take experts whose width is a multiple of 256.
    width = model.moe.width / sharding.tp if model.moe else 256
    return -(-width // 256) * 256 / width


def matrices(model: Model, stage: range, stages: int, *, draft: bool = False) -> Iterator[Matrix]:
    """Yield the weights of one pipeline stage of a model."""
    last = len(model.layers)
    vocab = -(-model.vocab // 64) * 64 * model.hidden  # padded for the kernels
    tied = bool(model.text.get("tie_word_embeddings", model.traits.get("tied", False)))
    first, final = 0 in stage, last - 1 in stage
    if first or (final and tied and stages > 1):
        yield Matrix("model.embed_tokens", vocab, plain=True)
    if final and not tied:
        yield Matrix("lm_head", vocab, plain=True)
    if first and "positions" in model.traits:  # learned, with so many rows more than positions
        yield Matrix("model.embed_positions", (model.context + model.traits["positions"]) * model.hidden, "none", True)
    side = int(model.text.get("hidden_size_per_layer_input") or 0)  # gemma3n, gemma4: embeddings of every layer
    if first and side:
        words = int(model.text.get("vocab_size_per_layer_input") or model.vocab)
        yield Matrix("model.embed_tokens_per_layer", (words + model.hidden) * side * last, plain=True)
    if first and model.multimodal:
        yield from _encoders(model)
    yield Matrix("rotary_emb", _rotary(model), "none", plain=True)
    for at in stage:
        if at < last:
            yield from _layer(model, at, model.layers[at], f"model.layers.{at}")
    if final and draft and model.draft:
        yield from _layer(model, last, model.draft[0], "mtp.layers.0")
        yield Matrix("mtp.fc", 2 * model.hidden**2, "none")


def _rotary(model: Model) -> float:
    """Elements of the cosine and sine tables: one row per position, stretched by linear scaling."""
    text = model.text
    dim = int(text.get("qk_rope_head_dim") or model.head_dim * float(text.get("partial_rotary_factor") or 1))
    scaling = text.get("rope_scaling") or text.get("rope_parameters")
    scaling = scaling if isinstance(scaling, Mapping) else {}
    kind = str(scaling.get("rope_type") or scaling.get("type") or "")
    stretch = float(scaling.get("factor") or 1) if kind in ("linear", "dynamic") else 1.0
    tables = stretch + (1 if "rope_local_base_freq" in text or model.family.startswith("gemma3") else 0)
    return model.context * dim * tables


def _layer(model: Model, at: int, caches: tuple[Cache, ...], name: str) -> Iterator[Matrix]:
    hidden, text = model.hidden, model.text
    attends = False
    for cache in caches or _shared(model):
        if isinstance(cache, State):
            yield from _state(model, cache, f"{name}.linear_attn")
        elif isinstance(cache, Compressed):
            yield from _compressed(model, cache, f"{name}.self_attn")
        elif isinstance(cache, Latent):
            yield from _latent(model, cache, f"{name}.self_attn")
        else:
            yield from _attention(model, cache, f"{name}.self_attn")
        attends = True
    moe = model.moe
    if moe and (at in moe.layers or at >= len(model.layers)):
        up = 1 if model.traits.get("mlp") == "plain" else 2
        yield Matrix(f"{name}.mlp.gate", hidden * moe.experts, "none", plain=True)
        yield Matrix(f"{name}.mlp.experts.0.up_proj", moe.experts * (up + 1) * hidden * moe.width, "experts")
        if moe.shared:
            yield Matrix(f"{name}.mlp.shared_experts.up_proj", (up + 1) * hidden * moe.shared)
    elif not (_only_mixes(model) and attends):
        yield Matrix(
            f"{name}.mlp.up_proj", (2 if model.traits.get("mlp") == "plain" else 3) * hidden * dense_width(model, at)
        )
    yield Matrix(f"{name}.norm", 2 * hidden, "none", plain=True)
    side = int(text.get("hidden_size_per_layer_input") or 0)
    if side:
        yield Matrix(f"{name}.per_layer_input", 2 * hidden * side, "none")
    if text.get("hc_mult") or text.get("hc_count"):  # hyper-connections: mixing weights per stream, in float32
        streams = int(text.get("hc_mult") or text["hc_count"])
        yield Matrix(f"{name}.hc", 2 * streams * hidden * (streams * (streams + 2)) * 2, "none", plain=True)


def dense_width(model: Model, at: int = 0) -> int:
    """Return the width of the MLP of a layer without experts."""
    text = model.text
    given = text.get(model.traits.get("dense", "intermediate_size")) or text.get("intermediate_size")
    if isinstance(given, list):
        given = given[min(at, len(given) - 1)]
    width = int((given or 4 * model.hidden) * model.traits.get("dense_share", 1))
    if text.get("block_auto_adjust_ff_dim"):  # lfm2
        step = int(text.get("block_multiple_of") or 256)
        wanted = int(2 * width / 3) * float(text.get("block_ffn_dim_multiplier") or 1)
        width = -(-int(wanted) // step) * step
    if text.get("use_double_wide_mlp") and at >= len(model.layers) - int(text.get("num_kv_shared_layers") or 0):
        width *= 2  # gemma4: layers that read another's cache
    return width


def _shared(model: Model) -> tuple[Cache, ...]:
    # A layer without a cache of its own still attends when it reads an earlier layer's; others have an MLP only.
    return (
        (Attention(model.kv_heads, model.head_dim, model.head_dim),) if model.text.get("num_kv_shared_layers") else ()
    )


def _only_mixes(model: Model) -> bool:
    return "hybrid_override_pattern" in model.text  # nemotron_h: a layer attends, keeps a state or has an MLP


def _attention(model: Model, cache: Attention, name: str) -> Iterator[Matrix]:
    hidden, queries = model.hidden, model.heads * cache.key
    gate = 2 if model.traits.get("gate") or model.text.get("attn_output_gate") else 1
    sides = 1 if model.text.get("attention_k_eq_v") and not cache.window else 2
    yield Matrix(f"{name}.q_proj", hidden * queries * gate)
    yield Matrix(f"{name}.k_proj", hidden * cache.heads * (cache.key if sides == 1 else cache.key + cache.value))
    yield Matrix(f"{name}.o_proj", model.heads * cache.value * hidden)
    if model.traits.get("bias") or model.text.get("attention_bias"):
        yield Matrix(f"{name}.bias", queries + cache.heads * (cache.key + cache.value), plain=True)


def _latent(model: Model, cache: Latent, name: str) -> Iterator[Matrix]:
    text, hidden = model.text, model.hidden
    nope, value = int(text.get("qk_nope_head_dim") or 0), int(text.get("v_head_dim") or model.head_dim)
    rank = int(text.get("q_lora_rank") or 0)
    if rank:
        yield Matrix(f"{name}.q_a_proj", hidden * rank, "none")
        yield Matrix(f"{name}.q_b_proj", rank * model.heads * (nope + cache.rope))
    else:
        yield Matrix(f"{name}.q_proj", hidden * model.heads * (nope + cache.rope))
    yield Matrix(f"{name}.kv_a_proj", hidden * (cache.rank + cache.rope), "none")
    yield Matrix(f"{name}.kv_b_proj", cache.rank * model.heads * (nope + value))
    yield Matrix(f"{name}.absorbed", cache.rank * model.heads * (nope + value), plain=True)  # W_UK and W_UV, in bf16
    yield Matrix(f"{name}.o_proj", model.heads * value * hidden)
    if cache.index:
        heads = int(text.get("index_n_heads") or 1)
        yield Matrix(f"{name}.indexer", cache.index * (heads * (rank or hidden) + hidden) + hidden * heads, "none")


def _compressed(model: Model, cache: Compressed, name: str) -> Iterator[Matrix]:
    text, hidden = model.text, model.hidden
    rank, groups, out = int(text["q_lora_rank"]), int(text.get("o_groups") or 1), int(text.get("o_lora_rank") or 0)
    yield Matrix(f"{name}.wq_a", hidden * rank, "none")
    yield Matrix(f"{name}.wq_b", rank * model.heads * cache.dim)
    yield Matrix(f"{name}.wkv", hidden * cache.dim, "none")
    yield Matrix(f"{name}.wo_a", model.heads * cache.dim * out)
    yield Matrix(f"{name}.wo_b", groups * out * hidden)
    if cache.ratio:  # the compressor: keys and gates, twice where windows overlap
        width = cache.dim * (2 if cache.ratio == 4 else 1)
        yield Matrix(f"{name}.compressor", 2 * hidden * width, "none", plain=True)
    if cache.index:
        heads = int(text["index_n_heads"])
        yield Matrix(f"{name}.indexer", cache.index * heads * rank + hidden * heads + 4 * hidden * cache.index, "none")


def _state(model: Model, state: State, name: str) -> Iterator[Matrix]:
    text, hidden = model.text, model.hidden
    if state.kind == "gdn":
        values = int(text["linear_num_value_heads"]) * int(text["linear_value_head_dim"])
        yield Matrix(f"{name}.in_proj_qkvz", hidden * (state.channels + values))
        yield Matrix(f"{name}.in_proj_ba", hidden * 2 * int(text["linear_num_value_heads"]), plain=True)
        yield Matrix(f"{name}.out_proj", values * hidden)
    elif state.kind == "kda":
        inner, dim = state.channels // 3, int(text["linear_attn_config"]["head_dim"])
        yield Matrix(f"{name}.qkv_proj", hidden * state.channels)
        yield Matrix(f"{name}.gates", 2 * (hidden * dim + dim * inner) + hidden * (inner // dim), "none")
        yield Matrix(f"{name}.o_proj", inner * hidden)
    elif state.kind == "conv":
        yield Matrix(f"{name}.in_proj", 3 * hidden * hidden)
        yield Matrix(f"{name}.out_proj", hidden * hidden)
    elif state.kind == "lightning":
        yield Matrix(f"{name}.qkv_proj", 5 * hidden * model.heads * model.head_dim)  # with output gate and o_proj
    elif state.kind == "mamba1":
        inner, rank, width = state.channels, int(text["mamba_dt_rank"]), int(text["mamba_d_state"])
        yield Matrix(f"{name}.in_proj", 3 * hidden * inner)  # with out_proj
        yield Matrix(f"{name}.x_proj", inner * (2 * rank + 3 * width))  # with dt_proj and A
    else:
        heads = int(text.get("mamba_n_heads") or text["mamba_num_heads"])
        groups = int(text.get("mamba_n_groups") or text.get("n_groups") or 1)
        width = int(text.get("mamba_d_state") or text["ssm_state_size"])
        inner = state.channels - 2 * groups * width
        yield Matrix(f"{name}.in_proj", hidden * (inner + state.channels + heads))
        yield Matrix(f"{name}.out_proj", inner * hidden)
    yield Matrix(f"{name}.conv1d", state.channels * state.kernel, plain=True)


def _encoders(model: Model) -> Iterator[Matrix]:
    """Vision and audio towers, counted as plain transformers with a projector; they are never quantised."""
    config: Mapping[str, Any] = model.config
    inner = config.get("thinker_config")
    config = inner if isinstance(inner, Mapping) else config
    vision = config.get("vision_config")
    if isinstance(vision, Mapping):
        kind = str(vision.get("model_type") or config.get("model_type") or "")
        unsaid = (1024, 4096, 24) if kind == "pixtral" else (0, 0, 0)  # defaults of its class
        # qwen2_vl calls the width embed_dim, and hidden_size what comes out
        width = _first(vision, "embed_dim", "hidden_size", "width", "vt_hidden_size") or unsaid[0]
        wide = _first(vision, "intermediate_size", "mlp_dim", "vt_intermediate_size") or unsaid[1] or 4 * width
        depth = _first(vision, "num_hidden_layers", "depth", "layers", "vt_num_hidden_layers") or unsaid[2]
        gated = 3 if kind.startswith(("pixtral", "qwen2_5", "gemma4")) else 2
        merge = _first(vision, "spatial_merge_size") or _first(config, "spatial_merge_size") or 1
        out = _first(vision, "out_hidden_size") or model.hidden
        yield Matrix("visual.blocks", depth * (4 * width**2 + gated * width * wide), plain=True)
        joined = width * merge**2
        named = re.search(r"_(\d+)m_enc", str(vision.get("architecture", "")))
        if named:  # a convolutional tower, whose name says the millions of its weights
            yield Matrix("visual.blocks", float(named[1]) * 1e6, plain=True)
        mergers = 1 + len(vision.get("deepstack_visual_indexes") or ())
        yield Matrix("visual.merger", mergers * joined * ((joined if merge > 1 else 0) + out), plain=True)
    audio = config.get("audio_config")
    if isinstance(audio, Mapping):
        width = _first(audio, "d_model", "hidden_size") or 0
        wide = _first(audio, "encoder_ffn_dim", "intermediate_size") or 4 * width
        depth = _first(audio, "encoder_layers", "num_hidden_layers") or 0
        yield Matrix("audio.layers", depth * (4 * width**2 + 2 * width * wide), plain=True)
        # conformer (gemma3n): two MLPs and a convolution beside attention
        blocks = _first(audio, "conf_num_hidden_layers") or 0
        yield Matrix("audio.conformer", blocks * (7 * width**2 + 4 * width * wide), plain=True)


def _first(config: Mapping[str, Any], *keys: str) -> int | None:
    return next((int(config[key]) for key in keys if isinstance(config.get(key), int)), None)


@dataclass(frozen=True, slots=True)
class Scheme:
    """A checkpoint's quantisation: `bits` per weight with scales, exceptions, and another size for experts."""

    bits: float = 0  # 0: not quantised
    experts_bits: float = 0  # 0: the same
    only_experts: bool = False
    ignored: tuple[str, ...] = ()

    def skips(self, name: str) -> bool:
        """Return whether a module keeps the model's dtype."""
        if not self.bits:
            return True
        if self.only_experts and ".experts." not in name:
            return True
        return any(_ignored(pattern, name) for pattern in self.ignored)

    def size(self, name: str, full: float) -> float:
        """Return bytes per weight of a quantised module."""
        bits = self.experts_bits if self.experts_bits and ".experts." in name else self.bits
        return min(bits / 8, full)


def scheme_of(config: Mapping[str, Any], flag: str = "") -> Scheme:
    """Return the quantisation of a checkpoint, else of the engine's flag."""
    given = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(given, Mapping):
        for key in ("text_config", "llm_config", "language_config", "thinker_config"):
            inner = config.get(key)
            if isinstance(inner, Mapping) and isinstance(inner.get("quantization_config"), Mapping):
                given = inner["quantization_config"]
    if isinstance(given, Mapping):
        return _scheme(given, str(config.get("expert_dtype") or ""))
    return (
        Scheme(8.0) if flag in ("fp8", "int8", "experts_int8", "mxfp8") else Scheme(4.5) if flag in _FOUR else Scheme()
    )


_FOUR = ("bitsandbytes", "mxfp4", "nvfp4", "modelopt_fp4", "awq", "gptq")


def _scheme(given: Mapping[str, Any], experts: str) -> Scheme:
    method = str(given.get("quant_method") or given.get("quant_algo") or "").lower()
    ignored = tuple(
        str(word)
        for key in ("ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules")
        for word in given.get(key) or ()
    )
    if method == "mxfp4":  # gpt-oss: experts only
        return Scheme(4.25, only_experts=True, ignored=ignored)
    if method in ("gptq", "awq", "auto-round", "autoround", "auto_round", "gptq_marlin", "awq_marlin"):
        bits, group = int(given.get("bits") or given.get("w_bit") or 4), int(given.get("group_size") or 128)
        return Scheme(bits + _scales(16 + bits, group), ignored=ignored)
    if method == "bitsandbytes":
        return Scheme(4.5 if given.get("load_in_4bit", True) else 8.0, ignored=ignored)
    algo = str(given.get("quant_algo") or (given.get("quantization") or {}).get("quant_algo") or "").upper()
    if method in ("compressed-tensors", "modelopt", "modelopt_fp4", "modelopt_mixed") or algo:
        return _grouped(given, algo, ignored)
    if method in ("fp8", "fbgemm_fp8", "mxfp8", "int8", "w8a8", "quark"):
        expert_bits = 4.25 if experts in ("fp4", "mxfp4") else 0.0
        return Scheme(8 + (8 / 32 if method == "mxfp8" else 0), expert_bits, ignored=ignored)
    return Scheme()


def _grouped(given: Mapping[str, Any], algo: str, ignored: tuple[str, ...]) -> Scheme:
    groups = given.get("config_groups")
    sizes: list[tuple[float, tuple[str, ...]]] = []
    for group in groups.values() if isinstance(groups, Mapping) else ():
        spec = group.get("weights") or {}
        bits, size = int(spec.get("num_bits") or 8), int(spec.get("group_size") or 0)
        four = bits == 4 and str(spec.get("type")) == "float"
        scale = 8 / max(size, 16) if four else _scales(16, size)
        sizes.append((bits + scale, tuple(str(t) for t in group.get("targets") or ())))
    if sizes:
        experts = [bits for bits, targets in sizes if any("expert" in t for t in targets)]
        others = [bits for bits, targets in sizes if not any("expert" in t for t in targets)]
        return Scheme((others or experts)[0], experts[0] if experts else 0.0, only_experts=not others, ignored=ignored)
    return Scheme(4.5 if "FP4" in algo else 8.0, ignored=ignored)


def _scales(bits: float, group: int) -> float:
    return bits / group if group > 0 else 0.0


def _ignored(pattern: str, name: str) -> bool:
    pattern = pattern.removeprefix("re:") if (regex := pattern.startswith("re:")) else pattern
    bare = re.sub(r"^(model\.|language_model\.)+", "", name)
    if regex:
        return any(re.match(pattern, text) for text in _spellings(bare))
    if "*" in pattern:
        return any(fnmatch.fnmatch(text, pattern) for text in _spellings(bare))
    short = re.sub(r"^(model\.|language_model\.)+", "", pattern)
    return short == bare or short in bare.split(".") or bare.startswith(f"{short}.") or short.startswith(f"{bare}.")


def _spellings(bare: str) -> Iterable[str]:
    return (bare, f"model.{bare}", f"model.language_model.{bare}", f"language_model.model.{bare}", f"{bare}.weight")
