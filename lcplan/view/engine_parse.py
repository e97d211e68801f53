"""Facts of an engine's log as text."""

from __future__ import annotations

from lcplan.engine.logs import LogFacts, classify_exit

_MEMORY = (
    ("KV cache", "kv_memory_gib"),
    ("weights", "weights_gib"),
    ("activation", "activation_gib"),
    ("non-torch", "non_torch_gib"),
    ("CUDA graphs", "cudagraph_gib"),
)


def facts_text(facts: LogFacts) -> str:
    """Return the facts as lines of `name  value`; what the log does not say is left out."""
    rows = [
        ("engine", " ".join(filter(None, (facts.engine, facts.engine_version)))),
        ("model", facts.model or ""),
        ("state", _state(facts)),
        ("layout", " ".join(f"{n}{v}" for n, v in (("tp", facts.tp), ("pp", facts.pp), ("dp", facts.dp)) if v)),
        ("KV pool", ", ".join(f"{tokens:,}" for tokens in facts.kv_tokens) + (" tokens" if facts.kv_tokens else "")),
        ("concurrency", ", ".join(f"{factor:g}x" for factor in facts.max_concurrency)),
        ("context", f"{facts.max_model_len:,} tokens" if facts.max_model_len else ""),
        ("sequences", f"{facts.max_num_seqs:,} at most" if facts.max_num_seqs else ""),
        ("KV dtype", facts.kv_cache_dtype or ""),
        ("memory share", f"{facts.gpu_mem_util:g}" if facts.gpu_mem_util else ""),
        ("memory", ", ".join(f"{label} {v:.2f} GiB" for label, n in _MEMORY if (v := getattr(facts, n)) is not None)),
        ("pools", ", ".join(f"{name} {size:,}" for name, size in facts.pools.items())),
        ("chosen", ", ".join(f"{name}={value}" for name, value in facts.choices.items())),
        ("stages", ", ".join(p.name if p.at_s is None else f"{p.name} {p.at_s:.0f} s" for p in facts.phases)),
    ]
    lines = [f"{name:<13} {value}" for name, value in rows if value]
    failure = classify_exit(facts, None)
    if failure:
        lines += [f"{'failure':<13} {failure.kind}: {failure.sentence}", f"{'hint':<13} {failure.hint}"]
    if facts.last_error:
        lines.append(f"{'error':<13} {facts.last_error}")
    return "".join(f"{line}\n" for line in lines)


def _state(facts: LogFacts) -> str:
    if facts.failure:
        return "failed"
    if facts.ready:
        after = f" after {facts.ready_seconds:.0f} s" if facts.ready_seconds is not None else ""
        return f"ready{after}" + (", then stopped" if facts.stopped else "")
    return "stopped" if facts.stopped else "not known to be ready"
