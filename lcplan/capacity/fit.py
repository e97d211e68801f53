"""What fits: how many sequences of one length the engine holds at once, from its pool, its cap and what was learned.

The formula `floor(pool / length) x engines` over-promises on hybrid models (sliding window, linear attention,
compressed caches), whose printed pool holds only for requests of the maximum length. So up to three figures are taken
and the least counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

PoolSource = Literal["predicted", "logged", "history", "declared", "unknown"]
Limit = Literal["pool", "cap", "unknown"]
Figure = Literal["formula", "concurrency", "law"]


class Cost(Protocol):
    """What one sequence takes of the pool: a measured `Law`, or the engine's arithmetic (`Prediction.cost`)."""

    def tokens(self, length: int) -> float:
        """Return the pool tokens that one sequence of `length` tokens takes."""


@dataclass(frozen=True, slots=True)
class Law:
    """A measured law: a sequence of `length` tokens takes `a + b * length` pool tokens of its engine.

    It holds for one (model, engine version, layout), and for hybrid models at one max-model-len, because their pool is
    expressed in sequences of that length.
    """

    a: float
    b: float

    def tokens(self, length: int) -> float:
        """Return the pool tokens that one sequence of `length` tokens takes."""
        return self.a + self.b * length


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of the KV usage gauge of one engine: `sequences` of mean `length` tokens fill `usage` (0..1)."""

    sequences: float
    length: float
    usage: float
    pool_tokens: int


@dataclass(frozen=True, slots=True)
class Fit:
    """What fits of one workload point, over all engine ranks.

    `fits` is None when no pool is known; `effective` is then the cap, an upper bound, and `limit` says "unknown".
    `figures` are the figures that `fits` is the least of, `by` the one that gave it.
    """

    fits: int | None
    cap: int | None
    cap_source: str
    effective: int | None
    limit: Limit
    pool_tokens: int | None
    pool_source: PoolSource
    engines: int
    by: Figure | None = None
    figures: tuple[tuple[Figure, int], ...] = ()

    def limited(self, users: int) -> bool:
        """Return whether a point with this many users is capacity-limited."""
        return self.effective is not None and users > self.effective


def fit(
    pool_tokens: int | None,
    engines: int,
    length: int,
    cap: int | None = None,
    *,
    cap_source: str = "",
    pool_source: PoolSource = "unknown",
    printed_concurrency: float | None = None,
    max_model_len: int | None = None,
    law: Cost | None = None,
) -> Fit:
    """Return what fits.

    `pool_tokens`, `cap` and `printed_concurrency` are those of one engine rank, `length` is prompt + output in tokens.
    The engine's concurrency line counts requests of `max_model_len` tokens; shorter ones are counted in proportion.
    """
    figures: list[tuple[Figure, int]] = []
    if pool_tokens is not None:
        figures.append(("formula", pool_tokens // max(length, 1) * engines))
        if law is not None:
            figures.append(("law", _times(pool_tokens, max(law.tokens(length), 1e-9)) * engines))
    if printed_concurrency is not None and max_model_len:
        figures.append(("concurrency", _times(printed_concurrency * max_model_len, max(length, 1)) * engines))
    total = None if cap is None else cap * engines
    if not figures:
        return Fit(None, total, cap_source, total, "unknown", pool_tokens, pool_source, engines)
    by, fits = min(figures, key=lambda f: f[1])
    effective = fits if total is None else min(fits, total)
    limit: Limit = "cap" if total is not None and total < fits else "pool"
    return Fit(fits, total, cap_source, effective, limit, pool_tokens, pool_source, engines, by, tuple(figures))


def fit_law(samples: Iterable[Sample], longest: int | None = None) -> Law | None:
    """Return the law of least squares through gauge readings, or None when none of them says anything.

    `longest` is the max-model-len of a server whose pool counts tokens of such requests: one of them takes just that,
    which is one more point. With points at one length only, the offset cannot be told from the slope and is taken as 0.
    """
    points = [
        (s.length, s.usage * s.pool_tokens / s.sequences)
        for s in samples
        if s.sequences > 0 and s.usage > 0 and s.length > 0
    ]
    if not points:
        return None
    points += [(float(longest), float(longest))] if longest else []
    mean_length = math.fsum(x for x, _ in points) / len(points)
    mean_taken = math.fsum(y for _, y in points) / len(points)
    spread = math.fsum((x - mean_length) ** 2 for x, _ in points)
    if spread <= (0.01 * mean_length) ** 2 * len(points):
        return Law(0.0, mean_taken / mean_length)
    slope = math.fsum((x - mean_length) * (y - mean_taken) for x, y in points) / spread
    if slope < 0:
        return Law(mean_taken, 0.0)
    offset = mean_taken - slope * mean_length
    if offset < 0:  # rounding of the gauge: a sequence never takes less than nothing
        return Law(0.0, math.fsum(x * y for x, y in points) / math.fsum(x * x for x, _ in points))
    return Law(offset, slope)


def _times(pool: float, each: float) -> int:
    # A quotient that misses a whole number by floating-point error alone counts as that number.
    return math.floor(pool / each + 1e-9)
