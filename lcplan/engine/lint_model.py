"""Whether a model can run as declared: its context, its heads and its experts against the layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lcplan.base.diagnostics import Diagnostic, error, warning
from lcplan.engine.rope import scaled_context

if TYPE_CHECKING:
    from lcplan.engine.base import ServerSpec
    from lcplan.engine.lint import LintFacts

_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_LATENT = ("kv_lora_rank", "index_head_dim")


def lint(spec: ServerSpec, facts: LintFacts, flags: Mapping[str, Any]) -> list[Diagnostic]:
    """Return what is wrong between model and layout. `flags` are the server's canonical ones."""
    outer = facts.config or {}
    inner = outer.get("text_config")
    config = {**outer, **inner} if isinstance(inner, Mapping) else outer
    moe = facts.moe if facts.moe is not None else any("expert" in key and value for key, value in config.items())
    return [
        *_context(spec, facts, flags, config),
        *_rope(spec, facts, config),
        *_heads(spec, facts, config),
        *_experts(spec, facts, flags, config, moe),
    ]


def _context(
    spec: ServerSpec, facts: LintFacts, flags: Mapping[str, Any], config: Mapping[str, Any]
) -> Iterator[Diagnostic]:
    own = spec.model_context or _count(config, "max_position_embeddings")
    if spec.context is None or not own or spec.context <= own:
        return
    place = facts.source_of("context")
    if spec.rope_scaling:
        reach = scaled_context(spec.rope_scaling, own)
        if reach is not None and spec.context > reach:
            message = f"a context of {spec.context} is above what the rope scaling reaches: {reach} tokens"
            yield error("context-above-model", message, f"scale by {-(-spec.context // own)}, or ask for less", place)
        return
    override = flags.get("hf-overrides") or flags.get("json-model-override-args")
    if "rope_" in str(override):
        return
    message = f"a context of {spec.context} is above the model's own {own} without rope scaling"
    hint = f"add rope_scaling: {{type: yarn, factor: {-(-spec.context // own)}.0}}, or ask for at most {own}"
    yield error("context-above-model", message, hint, place)


def _rope(spec: ServerSpec, facts: LintFacts, config: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """Both engines replace the config's rope parameters as a whole, and only those of the outermost config."""
    if not spec.rope_scaling or not config:
        return
    known = config.get("rope_parameters") or config.get("rope_scaling") or {}
    place = facts.source_of("rope_scaling")
    if isinstance((facts.config or {}).get("text_config"), Mapping):
        flag = "hf-overrides" if spec.kind == "vllm" else "json-model-override-args"
        message = "the model keeps its rope parameters in text_config, where rope_scaling does not reach"
        yield warning("rope-not-reached", message, f"write args: {{{flag}: {{text_config: ...}}}}", place)
    lost = [key for key in ("rope_theta", "partial_rotary_factor", "mrope_section") if key in known]
    lost = [key for key in lost if key not in spec.rope_scaling and key not in config]
    if lost:
        message = f"rope_scaling replaces the model's rope parameters and loses its {', '.join(lost)}"
        values = ", ".join(f"{key}: {known[key]}" for key in lost)
        yield warning("rope-parameters-lost", message, f"add to rope_scaling: {values}", place)


def _heads(spec: ServerSpec, facts: LintFacts, config: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """vllm/config/model.py, verify_with_parallel_config; the KV heads are split or replicated evenly."""
    tp, dcp = spec.layout.tp, spec.layout.dcp
    heads, place = _count(config, "num_attention_heads"), facts.source_of("layout")
    if not heads:
        return
    if heads % tp:
        message = f"{heads} attention heads can't be divided over {tp} tensor-parallel ranks"
        yield error("indivisible-heads", message, f"use a tp that divides {heads}", place)
        return
    kv_heads = _count(config, "num_key_value_heads") or heads
    if any(config.get(key) for key in _LATENT):
        return
    if kv_heads % tp and tp % kv_heads:
        message = f"{kv_heads} KV heads can't be divided over {tp} tensor-parallel ranks"
        yield error("indivisible-heads", message, f"use a tp that divides {kv_heads} or is a multiple of it", place)
    elif dcp > 1 and (tp <= kv_heads or dcp > tp // kv_heads or heads // kv_heads % dcp):
        most = tp // kv_heads if tp > kv_heads else 1
        message = f"{kv_heads} KV heads on {tp} tensor-parallel ranks leave room for a dcp of {most}, not {dcp}"
        yield error("indivisible-heads", message, "lower dcp, or raise tp", place)


def _experts(
    spec: ServerSpec, facts: LintFacts, flags: Mapping[str, Any], config: Mapping[str, Any], moe: bool
) -> Iterator[Diagnostic]:
    layout, place = spec.layout, facts.source_of("layout")
    ranks = layout.tp * layout.dp
    ep = layout.ep
    if ep > 1 and config and facts.moe is not True and not moe:
        yield error("no-experts", f"{layout.text} asks for expert parallelism of a model without experts", "", place)
    elif moe and layout.dp > 1 and ep == 1 and not flags.get("enable-expert-parallel") and "ep-size" not in flags:
        message = f"{layout.text} without expert parallelism: the engine will split every expert over all {ranks} ranks"
        hint = f"this runs as dp{layout.dp} with tensor-parallel experts; for expert parallelism add ep{ranks}"
        yield warning("tensor-parallel-experts", message, hint, place)
    if ep > 1 and spec.kind == "vllm" and ep != ranks:
        message = f"{layout.text}: vLLM spreads experts over all tp x dp = {ranks} ranks, not {ep}"
        yield warning("expert-ranks", message, f"write ep{ranks}", place)
    if ep > 1 and spec.kind == "sglang" and ranks % ep:
        message = f"{layout.text}: SGLang's expert ranks must divide its tp x dp = {ranks} ranks"
        yield error("expert-ranks", message, f"write ep{ranks}", place)
    experts = next((count for key in _EXPERTS if (count := _count(config, key))), 0)
    if spec.kind == "sglang" and ep > 1 and experts % ep:
        message = f"{experts} experts can't be divided over {ep} expert-parallel ranks"
        yield error("indivisible-experts", message, f"use an ep that divides {experts}", place)


def _count(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
