"""The tables of a report: the most sequences that fit at each length, per stack, and the points that are limited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lcplan.capacity.fit import Fit


@dataclass(frozen=True, slots=True)
class Point:
    """One workload point on a stack: prompt + output tokens, concurrent users, what fits."""

    workload: str
    length: int
    users: int
    fit: Fit


@dataclass(frozen=True, slots=True)
class Row:
    """One stack (variant) with its points. `context` is what the engine is started with."""

    stack: str
    layout: str
    context: int
    points: tuple[Point, ...]
    note: str = ""


def table(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the tables as JSON: `lengths`, and per stack the effective number at each of them.

    `at` gives None for a length beyond the stack's context or without a point (shown as `-`), and "unknown" where no
    pool is known.
    """
    lengths = sorted({point.length for row in rows for point in row.points})
    return {"lengths": lengths, "stacks": [_stack(row, lengths) for row in rows]}


def _stack(row: Row, lengths: Sequence[int]) -> dict[str, Any]:
    first = row.points[0].fit if row.points else None
    by_length = {point.length: point.fit for point in row.points}
    return {
        "stack": row.stack,
        "layout": row.layout,
        "context": row.context,
        "engines": first.engines if first else None,
        "pool_tokens": first.pool_tokens if first else None,
        "pool_source": first.pool_source if first else "unknown",
        "cap": first.cap if first else None,
        "cap_source": first.cap_source if first else "",
        "at": {str(length): _shown(by_length.get(length)) if length <= row.context else None for length in lengths},
        "points": [_point(point) for point in row.points],
        "note": row.note,
    }


def _shown(fit: Fit | None) -> int | str | None:
    if fit is None:
        return None
    return fit.effective if fit.effective is not None and fit.limit != "unknown" else "unknown"


def _point(point: Point) -> dict[str, Any]:
    return {
        "workload": point.workload,
        "length": point.length,
        "users": point.users,
        "fits": point.fit.fits,
        "effective": point.fit.effective,
        "limit": point.fit.limit,
        "by": point.fit.by,
        "figures": dict(point.fit.figures),
        "limited": point.fit.limited(point.users),
    }
