"""The tables of a report: the most sequences that fit at each length, per stack, and what limits workload points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lcplan.capacity.fit import Fit
from lcplan.capacity.pool import KvPool, fit_json, limited


@dataclass(frozen=True, slots=True)
class Point:
    """One workload point on a stack: prompt + output tokens, concurrent users, what fits."""

    workload: str
    length: int
    users: int
    fit: Fit


@dataclass(frozen=True, slots=True)
class Row:
    """One stack (variant) with its pool and its points. `context` is what the engine is started with, None: unknown.

    `sources` is what the pool was chosen from: predicted, declared, history.
    """

    stack: str
    variant: str | None
    layout: str
    context: int | None
    pool: KvPool
    points: tuple[Point, ...] = ()
    sources: Mapping[str, Any] = field(default_factory=dict)


def table(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the tables as JSON: `lengths`, and per stack the effective number at each of them, and its points.

    The lengths are the powers of two from 8K on, and the contexts. `at` gives None for a length beyond the stack's
    context (shown as `-`), and "unknown" where no pool is known.
    """
    contexts = {row.context for row in rows if row.context}
    longest = max(contexts, default=0)
    lengths = sorted(contexts | {size for power in range(13, 24) if (size := 2**power) <= longest})
    return {"lengths": lengths, "stacks": [_stack(row, lengths) for row in rows]}


def _stack(row: Row, lengths: Sequence[int]) -> dict[str, Any]:
    pool = row.pool
    return {
        "stack": row.stack,
        "variant": row.variant,
        "layout": row.layout,
        "context": row.context,
        "engines": pool.engines,
        "pool_tokens": pool.tokens,
        "pool_source": pool.source,
        "cap": None if pool.cap is None else pool.cap * pool.engines,
        "cap_source": pool.cap_source,
        "at": {str(n): _shown(pool.at(n)) if row.context and n <= row.context else None for n in lengths},
        "points": [_point(point) for point in row.points],
        **row.sources,
    }


def _shown(fit: Fit) -> int | str:
    return fit.effective if fit.effective is not None and fit.limit != "unknown" else "unknown"


def _point(point: Point) -> dict[str, Any]:
    head = {"workload": point.workload, "length": point.length, "users": point.users}
    return {**head, **fit_json(point.fit, limited(point.fit, point.users))}
