"""The prediction: from a config.json and a launch to the pool that the engine will print, with parts and interval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lcplan.base.diagnostics import Diagnostic, warning
from lcplan.base.layout import Layout
from lcplan.capacity import config as configs
from lcplan.capacity import flags as settings
from lcplan.capacity import sglang, vllm
from lcplan.capacity.fit import Cost
from lcplan.capacity.gpus import Gpu, gpu
from lcplan.capacity.overhead import overhead
from lcplan.capacity.shapes import Model, Unknown
from lcplan.capacity.weights import Sharding, scheme_of, weights

GIB = 2**30
# What a config.json with missing keys or values of a strange kind leads to, wherever it is used.
_MALFORMED = (KeyError, TypeError, ValueError, ZeroDivisionError, IndexError)


@dataclass(frozen=True, slots=True)
class Launch:
    """What decides a pool besides the model. `flags` are canonical names without dashes and typed values.

    `gpu_memory` is the GPU's memory in GiB as CUDA sees it, where known better than by the table.
    """

    engine: str
    version: str
    gpu: str
    layout: Layout
    flags: Mapping[str, Any] = field(default_factory=dict)
    gpu_memory: float | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one engine rank's pool will be. Fields are None where they cannot be known; `diagnostics` say why.

    `interval` holds the tokens between which the pool lies in nine of ten starts, `cost` what a sequence takes of it.
    """

    pool_tokens: int | None
    engines: int
    bytes_per_token: float | None = None
    weights_gib: float | None = None
    kv_memory_gib: float | None = None
    concurrency: float | None = None
    max_model_len: int | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    interval: tuple[int, int] | None = None
    cost: Cost | None = None
    diagnostics: tuple[Diagnostic, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the shape that `--json` prints."""
        return {
            "pool_tokens": self.pool_tokens,
            "engines": self.engines,
            "bytes_per_token": _rounded(self.bytes_per_token, 4),
            "weights_gib": _rounded(self.weights_gib, 3),
            "kv_memory_gib": _rounded(self.kv_memory_gib, 3),
            "max_concurrency": _rounded(self.concurrency, 2),
            "max_model_len": self.max_model_len,
            "predicted": {
                **{name: round(value, 3) for name, value in self.parts.items()},
                "interval": list(self.interval) if self.interval else None,
            },
            "diagnostics": [d.as_json() for d in self.diagnostics],
        }


def predict(config: Mapping[str, Any], launch: Launch, kv_memory_gib: float | None = None) -> Prediction:
    """Return the pool of one engine rank.

    With `kv_memory_gib`, the memory of a rank that the engine gives to its cache, only bytes are turned into tokens.
    """
    engine = {"vllm": _vllm, "sglang": _sglang}.get(launch.engine)
    if engine is None:
        why = warning(
            "unknown-engine", f"no prediction for engine '{launch.engine}'", "declare the pool with the stack"
        )
        return Prediction(None, launch.layout.engines, diagnostics=(why,))
    model = configs.read(config)
    if isinstance(model, Model):
        try:
            return engine(model, launch, gpu(launch.gpu, launch.gpu_memory), kv_memory_gib)
        except _MALFORMED as wrong:
            model = Unknown(
                model.architecture, f"config.json of {model.architecture} is incomplete or malformed ({wrong})"
            )
    why = warning("unknown-architecture", f"no prediction: {model.why}", "declare the pool, or learn it from a run")
    return Prediction(None, launch.layout.engines, diagnostics=(why,))


def _vllm(model: Model, launch: Launch, card: Gpu | None, kv_memory: float | None) -> Prediction:
    given = settings.vllm(model, launch.version, card, launch.layout, launch.flags)
    pool = vllm.pool(model, given)
    stages = vllm.stages_of(len(model.layers), given.pp, len(model.draft) if given.draft else 0)
    sharding = Sharding(given.tp, given.tp * given.dp)
    loaded = [
        weights(
            model, stage, len(stages), sharding, dtype=given.dtype, quantization=given.quantization, draft=given.draft
        )
        for stage in stages
    ]
    if kv_memory is None:
        kv_memory = given.kv_memory or None
    base = Prediction(
        None, given.dp, pool.bytes_per_token, loaded[0], kv_memory, max_model_len=given.max_model_len, cost=pool
    )
    parts: dict[str, float] = {"weights_gib": loaded[0]}
    if kv_memory is not None:
        free = low = high = [kv_memory] * len(stages)
    elif card is None:
        return replace(base, diagnostics=(_no_gpu(launch.gpu),))
    else:
        besides = [
            overhead(model, given, last=at == len(stages) - 1, layers=len(stage)) for at, stage in enumerate(stages)
        ]
        share = card.memory * given.utilization
        free = [share - w - o.total for w, o in zip(loaded, besides, strict=True)]
        spread = (0.03 if 0 < scheme_of(model.config, given.quantization).bits < 8 else 0.005) * loaded[0] + (
            0 if card.known else 0.02 * card.memory
        )
        low = [f - o.high - spread for f, o in zip(free, besides, strict=True)]
        high = [f - o.low + spread for f, o in zip(free, besides, strict=True)]
        first = besides[0]
        parts = {
            "gpu_memory_gib": card.memory,
            "share_gib": share,
            "weights_gib": loaded[0],
            "activations_gib": first.activations,
            "communication_gib": first.communication,
            "graphs_gib": first.graphs,
            "other_gib": first.other,
        }
    blocks = given.blocks_override or pool.blocks([f * GIB for f in free])
    if launch.flags.get("max-model-len") in (-1, "auto"):  # the engine shortens the context until a request fits
        length = pool.longest(blocks)
        pool = vllm.pool(model, replace(given, max_model_len=length))
        base = replace(base, bytes_per_token=pool.bytes_per_token, max_model_len=length, cost=pool)
    tokens = pool.printed(blocks)
    few, many = (given.blocks_override or pool.blocks([f * GIB for f in bound]) for bound in (low, high))
    between = (pool.printed(few), pool.printed(many))
    parts["pool_gib"] = blocks * pool.stages[0] / GIB
    parts["bytes_per_block"] = pool.stages[0]
    parts["blocks"] = blocks
    found = [] if given.draft_known else [_draft_not_counted()]
    if pool.request(pool.max_model_len) > blocks:
        needed, left = (count * pool.stages[0] / GIB for count in (pool.request(pool.max_model_len), blocks))
        found.append(
            warning(
                "kv-too-small",
                f"one request of {pool.max_model_len:,} tokens needs {needed:.2f} GiB of KV cache and "
                f"{left if blocks else free[0]:.2f} GiB is left: the engine will refuse to start",
                "lower the context or the other memory, or use more GPUs",
            )
        )
    return replace(
        base,
        pool_tokens=tokens,
        kv_memory_gib=free[0],
        concurrency=pool.concurrency(blocks),
        parts=parts,
        interval=between,
        diagnostics=tuple(found),
    )


def _sglang(model: Model, launch: Launch, card: Gpu | None, kv_memory: float | None) -> Prediction:
    given = sglang.settings(model, launch.version, card, launch.layout, launch.flags)
    pool = sglang.pool(model, given)
    stages = vllm.stages_of(len(model.layers), given.pp)
    sharding = Sharding(given.heads_tp, given.tp)
    loaded = [
        weights(
            model, stage, len(stages), sharding, dtype=given.dtype, quantization=given.quantization, draft=given.draft
        )
        for stage in stages
    ]
    base = Prediction(
        None, given.dp, pool.bytes_per_token, loaded[0], kv_memory, max_model_len=given.context, cost=pool
    )
    parts: dict[str, float] = {"weights_gib": loaded[0]}
    if kv_memory is not None:
        free, spread = [kv_memory] * len(stages), 0.0
    elif card is None:
        return replace(base, diagnostics=(_no_gpu(launch.gpu),))
    else:
        start = sglang.free_at_start(card, given)
        free = [start * given.fraction - w for w in loaded]
        spread = 0.3 + (0.05 if scheme_of(model.config, given.quantization).bits else 0.01) * loaded[0]
        spread += 0 if card.known else 0.02 * card.memory
        parts = {
            "gpu_memory_gib": card.memory,
            "share_gib": start * given.fraction,
            "weights_gib": loaded[0],
            "slack_gib": start * (1 - given.fraction),
        }
    tokens = pool.printed([f * GIB for f in free])
    low, high = (pool.printed([(f + sign * spread) * GIB for f in free]) for sign in (-1, 1))
    parts["pool_gib"] = tokens * pool.cells[0] / GIB
    found = () if given.draft_known else (_draft_not_counted(),)
    return replace(
        base, pool_tokens=tokens, kv_memory_gib=free[0], parts=parts, interval=(low, high), diagnostics=found
    )


def _draft_not_counted() -> Diagnostic:
    message = "the draft model's weights and cache are not counted: its config.json is another one"
    return warning("draft-not-counted", message, "the pool will be smaller")


def _no_gpu(name: str) -> Diagnostic:
    return warning("unknown-gpu", f"the memory of GPU '{name}' is not known", "give it in GiB as CUDA sees it")


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
