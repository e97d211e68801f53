"""From a model's config.json to the caches of its layers. Pure; families that differ from the common keys are data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lcplan.capacity.shapes import Attention, Cache, Compressed, Latent, Model, Moe, State, Unknown

# Where wrappers (vision, audio) keep the text model's config.
_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")

# Other spellings of the common keys.
_ALIASES = {
    "hidden_size": ("n_embd", "n_embed", "d_model", "model_dim", "dim"),
    "num_hidden_layers": ("n_layer", "num_layers", "n_layers"),
    "num_attention_heads": ("n_head", "num_heads", "n_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv", "n_kv_heads", "kv_n_heads", "multi_query_group_num"),
    "head_dim": ("attention_head_dim", "kv_channels"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim", "block_ff_dim"),
    "vocab_size": ("padded_vocab_size",),
    "max_position_embeddings": ("n_positions", "max_seq_len", "model_max_length", "seq_length"),
    "num_experts": ("n_routed_experts", "num_local_experts", "moe_num_experts"),
    "num_experts_per_tok": ("num_experts_per_token", "moe_topk", "moe_k", "moe_top_k", "top_k_experts"),
    "dtype": ("torch_dtype",),
    "tie_word_embeddings": ("tie_embedding",),
}

# Where some families keep a part of the text model's keys.
_PARTS = ("attn_config", "ffn_config")

_MOST_LAYERS = 10_000  # more is a broken file

_FULL = {"full_attention", "attention", "global", "global_attention", "full", "*"}
_SLIDING = {"sliding_attention", "sliding_window_attention", "local", "sliding"}
_LINEAR = {"linear_attention", "mamba", "mamba2", "M", "recurrent", "conv", "linear"}
_LETTERS = {"L": "sliding_attention", "G": "full_attention"}  # exaone4
_NONE = {"-", "mlp", "E", "moe"}  # nemotron_h: layers without a cache


def read(config: Mapping[str, Any]) -> Model | Unknown:
    """Return the shapes of a config.json, or why they cannot be known. Never raises for a strange config."""
    name = _name(config)
    text = _text(config)
    family = _family(text, config)
    traits = families().get(family)
    if traits is None:
        return Unknown(
            name, f"the architecture {name} (model_type '{family or 'absent'}') is not in the table of families"
        )
    unsaid = dict(traits.get("defaults", {}))
    if any(isinstance(config.get(key), Mapping) for key in _NESTED):  # written as what differs from the class defaults
        unsaid |= traits.get("nested", {})
    text = {**unsaid, **{k: v for k, v in text.items() if v is not None}}
    try:
        return _model(name, family, traits, text, config)
    except KeyError as missing:
        return Unknown(name, f"config.json of {name} lacks {missing.args[0]}")
    except _Strange as strange:
        return Unknown(name, f"{name}: {strange}")
    except (TypeError, ValueError, ZeroDivisionError, AttributeError) as wrong:
        return Unknown(name, f"config.json of {name} is malformed: {wrong}")


@cache
def families() -> dict[str, dict[str, Any]]:
    """Return what is known of each family, by model_type."""
    table: dict[str, dict[str, Any]] = _table()["types"]
    return table


class _Strange(Exception):
    """A config of a known family with something that the arithmetic does not know."""


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads((Path(__file__).parent / "families.json").read_text())
    return table


def _family(text: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The model_type, or the family whose class the architecture names: engines load by architecture."""
    given = str(text.get("model_type") or config.get("model_type") or "")
    if given in families():
        return given
    listed = text.get("architectures") or config.get("architectures")
    if not given and not listed and {"dim", "n_layers", "n_heads", "hidden_dim"} <= text.keys() and "moe" not in text:
        return "mistral"  # Mistral's own params.json
    named = _table()["architectures"].get(str(listed[0])) if isinstance(listed, list) and listed else None
    return str(named or given)


def _name(config: Mapping[str, Any]) -> str:
    listed = config.get("architectures")
    if isinstance(listed, list) and listed:
        return str(listed[0])
    return str(config.get("model_type") or "without a name")


def _text(config: Mapping[str, Any]) -> dict[str, Any]:
    text = dict(config)
    for key in _NESTED:
        inner = text.get(key)
        if isinstance(inner, Mapping):
            # dtype, tying and quantisation are written outside as often as inside.
            outer: dict[str, Any] = {
                k: text[k] for k in ("torch_dtype", "dtype", "tie_word_embeddings", "max_model_len") if k in text
            }
            text = _text({**outer, **inner})
    for part in _PARTS:
        inner = text.get(part)
        text |= {k: v for k, v in inner.items() if k not in text} if isinstance(inner, Mapping) else {}
    for common, others in _ALIASES.items():
        for other in others:
            if text.get(common) is None and text.get(other) is not None:
                text[common] = text[other]
    return text


def _model(
    name: str, family: str, traits: Mapping[str, Any], text: Mapping[str, Any], config: Mapping[str, Any]
) -> Model:
    heads, hidden = _positive(text, "num_attention_heads"), _positive(text, "hidden_size")
    kv_heads = _kv_heads(text, heads)
    head_dim = int(text.get("head_dim") or hidden // heads)
    if min(kv_heads, head_dim) < 1:
        raise _Strange(f"{kv_heads} KV heads of {head_dim} elements")
    count = _few(_positive(text, "num_hidden_layers"), "num_hidden_layers", _MOST_LAYERS)
    layers = _layers(traits, text, count, kv_heads, head_dim)
    # these read the cache of an earlier layer
    shared = _few(int(text.get("num_kv_shared_layers") or 0), "num_kv_shared_layers", count)
    if shared:
        layers = (*layers[: count - shared], *((),) * shared)
    drafts = (
        text.get("num_nextn_predict_layers") or text.get("mtp_num_hidden_layers") or text.get("num_mtp_modules") or 0
    )
    return Model(
        architecture=name,
        family=family,
        traits=traits,
        layers=layers,
        draft=(_draft(layers),) * _few(int(drafts), "the number of prediction layers", count),
        hidden=hidden,
        vocab=_positive(text, "vocab_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=str(text.get("dtype") or "bfloat16").removeprefix("torch."),
        context=int(text.get("max_position_embeddings") or 0),
        moe=_moe(traits, text, count),
        text=text,
        config=config,
    )


def _positive(text: Mapping[str, Any], key: str) -> int:
    value = int(text[key])
    if value < 1:
        raise _Strange(f"{key} is {value}")
    return value


def _few(value: int, key: str, most: int) -> int:
    if value > most:
        raise _Strange(f"{key} is {value}")
    return value


def _kv_heads(text: Mapping[str, Any], heads: int) -> int:
    if text.get("multi_query") is True and not text.get("new_decoder_architecture"):
        return 1
    given = text.get("num_key_value_heads")
    return _one(given) or heads


def _one(value: Any) -> int:
    """A number that some configs list per layer: equal in every released model that serves."""
    return int(max(value) if isinstance(value, list) else value or 0)


def _layers(
    traits: Mapping[str, Any], text: Mapping[str, Any], count: int, kv_heads: int, head_dim: int
) -> tuple[tuple[Cache, ...], ...]:
    if "compress_ratios" in text:
        return tuple((_compressed(text, int(r)),) for r in text["compress_ratios"][:count])
    kinds = _kinds(traits, text, count)
    if len(kinds) < count:
        raise _Strange(f"the kinds of {len(kinds)} of {count} layers are listed")
    state = _state(text) if any(k in _LINEAR for k in kinds) or traits.get("parallel") else None
    full = _full(text, kv_heads, head_dim)
    index = _indexed(text, count)
    local = _local(text, kv_heads, head_dim)
    layers: list[tuple[Cache, ...]] = []
    for at, kind in enumerate(kinds):
        if kind in _NONE:
            layers.append(())
        elif kind in _LINEAR and state:
            layers.append((state,))
        elif kind in _SLIDING:
            if local.window < 1:
                raise _Strange("layers slide but the config has no sliding_window")
            layers.append((local,))
        elif kind == "chunked_attention":
            layers.append((Attention(kv_heads, head_dim, head_dim, chunk=int(text["attention_chunk_size"])),))
        elif kind in _FULL or kind == "deepseek_sparse_attention":
            cache: Cache = full
            if isinstance(full, Latent) and not index[at]:
                cache = Latent(full.rank, full.rope)
            layers.append((cache, state) if traits.get("parallel") and state else (cache,))
        else:
            raise _Strange(f"layers of kind '{kind}' are not known")
    return tuple(layers)


def _kinds(traits: Mapping[str, Any], text: Mapping[str, Any], count: int) -> list[str]:
    if text.get("cross_attention_layers"):
        raise _Strange("the caches of cross-attention layers are not known")
    linear = text.get("linear_attn_config")
    if isinstance(linear, Mapping) and "kda_layers" in linear and "layer_types" not in text:
        kda = set(linear["kda_layers"])  # counted from 1
        return ["linear_attention" if at + 1 in kda else "full_attention" for at in range(count)]
    for key in ("layer_types", "layers_block_type", "hybrid_override_pattern", "layer_block_type"):
        listed = text.get(key)
        if listed:
            return [str(k) for k in listed][:count]
    if isinstance(text.get("attn_type_list"), list):  # minimax: 0 is lightning attention
        return ["full_attention" if full else "linear_attention" for full in text["attn_type_list"]][:count]
    if text.get("attn_layer_period"):  # jamba
        every, first = int(text["attn_layer_period"]), int(text.get("attn_layer_offset") or 0)
        return ["full_attention" if at % every == first else "mamba" for at in range(count)]
    if "full_attn_idxs" in text:
        full = set(text["full_attn_idxs"])
        return ["full_attention" if at in full else "conv" for at in range(count)]
    if text.get("full_attention_interval"):
        every = int(text["full_attention_interval"])
        return ["full_attention" if (at + 1) % every == 0 else "linear_attention" for at in range(count)]
    if text.get("attention_chunk_size") and not text.get("no_rope_layers"):
        every = int(text.get("no_rope_layer_interval") or 4)
        return ["full_attention" if (at + 1) % every == 0 else "chunked_attention" for at in range(count)]
    if text.get("attention_chunk_size"):
        return ["chunked_attention" if rope else "full_attention" for rope in text["no_rope_layers"]]
    if isinstance(text.get("hybrid_layer_pattern"), list):
        return ["sliding_attention" if slides else "full_attention" for slides in text["hybrid_layer_pattern"]]
    pattern = text.get("sliding_window_pattern") or text.get("_sliding_window_pattern") or traits.get("pattern")
    window = text.get("sliding_window") if text.get("use_sliding_window") is not False else None
    if isinstance(pattern, str) and window and set(pattern) <= _LETTERS.keys():
        return [_LETTERS[pattern[at % len(pattern)]] for at in range(count)]
    if isinstance(pattern, int) and pattern > 1 and window:
        return ["full_attention" if (at + 1) % pattern == 0 else "sliding_attention" for at in range(count)]
    if "attn_layer_indices" in text:  # bamba
        full = set(text["attn_layer_indices"])
        return ["full_attention" if at in full else "mamba" for at in range(count)]
    return ["sliding_attention" if window else "full_attention"] * count


def _local(text: Mapping[str, Any], kv_heads: int, head_dim: int) -> Attention:
    key = int(text.get("swa_head_dim") or head_dim)
    value = int(text.get("swa_v_head_dim") or text.get("v_head_dim") or key)
    return Attention(
        int(text.get("swa_num_key_value_heads") or kv_heads), key, value, window=int(text.get("sliding_window") or 0)
    )


def _full(text: Mapping[str, Any], kv_heads: int, head_dim: int) -> Cache:
    if text.get("kv_lora_rank"):
        index, pooled = int(text.get("index_head_dim") or 0), int(text.get("index_kpool") or 1)
        return Latent(int(text["kv_lora_rank"]), int(text["qk_rope_head_dim"]), index, pooled)
    if text.get("global_head_dim"):
        heads, dim = int(text.get("num_global_key_value_heads") or kv_heads), int(text["global_head_dim"])
        return Attention(heads, dim, dim)
    return Attention(kv_heads, head_dim, int(text.get("v_head_dim") or head_dim))


def _indexed(text: Mapping[str, Any], count: int) -> list[bool]:
    kinds = text.get("indexer_types")  # layers that share another layer's indexer own none
    if isinstance(kinds, list):
        return [k == "full" for k in kinds][:count]
    return [True] * count


def _compressed(text: Mapping[str, Any], ratio: int) -> Compressed:
    return Compressed(
        ratio=ratio,
        dim=int(text["head_dim"]),
        rope=int(text["qk_rope_head_dim"]),
        index=int(text["index_head_dim"]) if ratio == 4 else 0,
        window=int(text["sliding_window"]),
    )


def _state(text: Mapping[str, Any]) -> State:
    dtype = str(text.get("mamba_ssm_dtype") or text.get("mamba_ssm_cache_dtype") or "")
    linear = text.get("linear_attn_config")
    if isinstance(linear, Mapping):
        heads, dim = int(linear["num_heads"]), int(linear["head_dim"])
        return State("kda", 3 * heads * dim, int(linear["short_conv_kernel_size"]), heads * dim * dim, "float32")
    if "linear_num_value_heads" in text:
        keys = int(text["linear_num_key_heads"]) * int(text["linear_key_head_dim"])
        values = int(text["linear_num_value_heads"]) * int(text["linear_value_head_dim"])
        elements = values * int(text["linear_key_head_dim"])
        return State("gdn", 2 * keys + values, int(text["linear_conv_kernel_dim"]), elements, dtype)
    if "conv_L_cache" in text:  # lfm2: a short convolution only
        return State("conv", int(text["hidden_size"]), int(text["conv_L_cache"]), 0)
    if "attn_type_list" in text:  # lightning attention: one matrix per head
        heads, dim = int(text["num_attention_heads"]), int(text["head_dim"])
        return State("lightning", 0, 1, heads * dim * dim, dtype)
    if "mamba_dt_rank" in text:
        inner = int(text.get("mamba_expand") or 2) * int(text["hidden_size"])
        return State("mamba1", inner, int(text.get("mamba_d_conv") or 4), inner * int(text["mamba_d_state"]), dtype)
    heads = int(text.get("mamba_n_heads") or text["mamba_num_heads"])
    given = text.get("mamba_d_head") or text.get("mamba_head_dim")
    inner = int(text.get("mamba_expand") or 2) * int(text["hidden_size"])
    dim = given if isinstance(given, int) else inner // heads
    state = int(text.get("mamba_d_state") or text["ssm_state_size"])
    groups = int(text.get("mamba_n_groups") or text.get("n_groups") or 1)
    kernel = int(text.get("mamba_d_conv") or text.get("conv_kernel") or 4)
    return State("mamba2", heads * dim + 2 * groups * state, kernel, heads * dim * state, dtype)


def _draft(layers: tuple[tuple[Cache, ...], ...]) -> tuple[Cache, ...]:
    # A multi-token prediction layer repeats the model's full-attention layer.
    for layer in reversed(layers):
        for one in layer:
            if isinstance(one, Latent) or (isinstance(one, Attention) and not one.window and not one.chunk):
                return (one,)
    return tuple(Compressed(0, c.dim, c.rope, 0, c.window) for c in layers[-1] if isinstance(c, Compressed))


def _moe(traits: Mapping[str, Any], text: Mapping[str, Any], count: int) -> Moe | None:
    experts = _one(text.get("num_experts"))
    if experts <= 1:
        return None
    width = _one(text[traits.get("experts", "moe_intermediate_size")])
    shared = int(text.get("shared_expert_intermediate_size") or text.get("shared_intermediate_size") or 0)
    if not shared:
        keys = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
        shared = width * next((_one(text[key]) for key in keys if text.get(key)), 0)
    if traits.get("dense"):  # llama4: one shared expert of the same width
        shared = width
    if text.get("enable_moe_block"):  # gemma4: the dense MLP stays beside the experts
        shared = _one(text["intermediate_size"])
    dense = set(text.get("mlp_only_layers") or ()) | set(range(min(count, int(text.get("first_k_dense_replace") or 0))))
    step = text.get("decoder_sparse_step") or text.get("interleave_moe_layer_step") or text.get("moe_layer_freq") or 1
    if isinstance(text.get("mlp_layer_types"), list):
        with_experts = {at for at, kind in enumerate(text["mlp_layer_types"]) if kind == "sparse"}
    elif isinstance(step, list):
        with_experts = {at for at, on in enumerate(step) if on}
    elif text.get("expert_layer_period"):  # jamba
        every, first = int(text["expert_layer_period"]), int(text.get("expert_layer_offset") or 0)
        with_experts = {at for at in range(count) if at % every == first}
    elif "moe_layer_start_index" in text:  # ernie
        end = int(text.get("moe_layer_end_index") or -1)
        chosen = range(int(text["moe_layer_start_index"]), min(count, end + 1) if end >= 0 else count)
        with_experts = {at for at in chosen if (at + 1) % int(text.get("moe_layer_interval") or 1) == 0}
    elif "hybrid_override_pattern" in text:
        with_experts = {at for at, kind in enumerate(text["hybrid_override_pattern"]) if kind == "E"}
    elif text.get("moe_layer_freq"):
        with_experts = {at for at in range(count) if at not in dense and at % int(step) == 0}
    else:
        with_experts = {at for at in range(count) if at not in dense and (at + 1) % int(step) == 0}
    return Moe(experts, _one(text.get("num_experts_per_tok")) or 1, width, shared, frozenset(with_experts))
