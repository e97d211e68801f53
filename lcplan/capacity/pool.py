"""An engine's pool as far as it is known, before launch or after it, and what earlier runs tell of it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lcplan.capacity.fit import Cost, Fit, Law, PoolSource, fit


@dataclass(frozen=True, slots=True)
class KvPool:
    """The pool, cap and printed concurrency of one engine rank; None where not known. `cost` is what a sequence takes.

    `certain` is False when the figures are those of other settings of the same stack: they mark cells, but block none.
    """

    tokens: int | None
    source: PoolSource
    engines: int
    cap: int | None = None
    cap_source: str = ""
    concurrency: float | None = None
    max_model_len: int | None = None
    cost: Cost | None = None
    certain: bool = True

    def at(self, length: int, cost: Cost | None = None) -> Fit:
        """Return how many sequences of `length` tokens fit over all ranks; `cost` in place of the pool's own."""
        return fit(
            self.tokens,
            self.engines,
            length,
            self.cap,
            cap_source=self.cap_source,
            pool_source=self.source,
            printed_concurrency=self.concurrency,
            max_model_len=self.max_model_len,
            law=cost or self.cost,
        )


@dataclass(frozen=True, slots=True)
class Past:
    """What earlier runs of a launch say: pools of one rank, newest first, and what the newest printed beside its pool.

    `exact` tells runs of the same command line from those of the same stack, model, engine version and layout with
    other settings. `ratios` are logged over predicted where both were known.
    """

    runs: tuple[str, ...]
    pools: tuple[int, ...]
    exact: bool
    concurrency: float | None = None
    max_model_len: int | None = None
    cap: int | None = None
    ratios: tuple[float, ...] = ()
    law: Law | None = None

    @property
    def ratio(self) -> float:
        """How much larger pools were than predicted; 1 where that is not known."""
        return statistics.median(self.ratios) if self.ratios else 1.0

    def as_json(self) -> dict[str, Any]:
        """Return the shape that plan and manifest keep."""
        return {
            "runs": list(self.runs),
            "pools": list(self.pools),
            "exact": self.exact,
            "law": None if self.law is None else {"a": self.law.a, "b": self.law.b},
        }


def known_law(past: Mapping[str, Any] | None) -> Law | None:
    """Return the law of `Past.as_json`."""
    law = (past or {}).get("law")
    return Law(float(law["a"]), float(law["b"])) if law else None


def fit_json(found: Fit, limited: bool | None) -> dict[str, Any]:
    """Return a fit as plan and manifest keep it."""
    return {
        "fits": found.fits,
        "cap": found.cap,
        "cap_source": found.cap_source,
        "effective": found.effective,
        "limit": found.limit,
        "limited": limited,
        "by": found.by,
        "figures": dict(found.figures),
        "pool_tokens": found.pool_tokens,
        "pool_source": found.pool_source,
        "engines": found.engines,
    }


def limited(found: Fit, users: int) -> bool | None:
    """Return whether a point with this many users is capacity-limited, None when only a launch can tell."""
    if found.limited(users):
        return True
    return None if found.limit == "unknown" else False


def unmet(pool: KvPool, requires: Sequence[Mapping[str, Any]]) -> str:
    """Return why none of these requirements (`experiment`, `sequences`, `at`) is met, "" when one is or none is there.

    A cell that several experiments want is worth measuring when one of them may.
    """
    sentences = []
    for one in requires:
        found = pool.at(one["at"])
        if found.effective is None or found.effective >= one["sequences"]:
            return ""
        sentences.append(
            f"{one['experiment']} requires {one['sequences']} sequences of {one['at']:,} tokens, "
            f"only {found.effective} fit ({why(found)})"
        )
    return "; ".join(sentences)


def why(found: Fit) -> str:
    """Return in words which limit binds and where its figure comes from."""
    if found.limit == "pool" and found.pool_tokens is not None:
        ranks = f" x {found.engines}" if found.engines > 1 else ""
        return f"pool of {found.pool_tokens:,} tokens{ranks}, {found.pool_source}"
    return f"cap of {found.cap}, {found.cap_source}" if found.cap is not None else "nothing is known"
