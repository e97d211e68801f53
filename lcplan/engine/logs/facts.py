"""The facts of a start-up log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Phase:
    """A stage that the start reached: seconds after the log's first time stamp, and its duration where printed."""

    name: str
    at_s: float | None = None
    took_s: float | None = None


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What a log says. None (or empty) = it does not say. GiB = 2**30 bytes, per GPU; tokens are per engine rank.

    `kv_tokens` and `max_concurrency` hold one number per data-parallel engine, in rank order. `failure` is one of
    FAILURES; `ready` is True once the server said so and nothing failed since, False when it failed. `stopped` means
    that it was told to stop. `choices` is what the engine settled by itself (attention backend, dtype, DP fallback...).
    """

    kv_tokens: tuple[int, ...] = ()
    engines: int | None = None
    max_concurrency: tuple[float, ...] = ()
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    block_size: int | None = None
    gpu_blocks: int | None = None
    cpu_blocks: int | None = None
    kv_memory_gib: float | None = None
    weights_gib: float | None = None
    activation_gib: float | None = None
    non_torch_gib: float | None = None
    cudagraph_gib: float | None = None
    gpu_mem_util: float | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    model: str | None = None
    kv_cache_dtype: str | None = None
    pools: Mapping[str, int] = field(default_factory=dict)
    failure: str | None = None
    failure_data: Mapping[str, object] = field(default_factory=dict)
    ready: bool | None = None
    engine: str | None = None
    engine_version: str | None = None
    choices: Mapping[str, object] = field(default_factory=dict)
    phases: tuple[Phase, ...] = ()
    ready_seconds: float | None = None
    stopped: bool = False
    last_error: str | None = None
    last_line: str | None = None

    @property
    def stage(self) -> str:
        """The last stage reached: start, engine, weights, pool, graphs, engine_ready, listening, ready."""
        return self.phases[-1].name if self.phases else ""

    def as_json(self) -> dict[str, Any]:
        """Return the facts as JSON values, every key present."""
        out: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("kv_tokens", "max_concurrency"):
            out[name] = list(out[name])
        for name in ("pools", "failure_data", "choices"):
            out[name] = dict(out[name])
        out["phases"] = [{"name": p.name, "at_s": p.at_s, "took_s": p.took_s} for p in self.phases]
        return out
