"""The tables of what fits: per run, how many sequences of each workload's length the engine holds at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lcplan.base.units import show_tokens
from lcplan.report.campaign import Measured


@dataclass(frozen=True, slots=True)
class Held:
    """What fits of one shape: `effective` at once, by which limit; `asked` is the most users that asked for it."""

    effective: int | None
    limit: str
    asked: int

    @property
    def limited(self) -> bool:
        """Whether more was asked for than fits."""
        return self.effective is not None and self.asked > self.effective


@dataclass(frozen=True, slots=True)
class Row:
    """One run: tokens of one engine's pool, engines, sequences that one of them runs at once, and what fits."""

    run: str
    subject: str
    simulated: bool
    pool: int | None
    engines: int | None
    cap: int | None
    held: Mapping[str, Held]


def capacity_rows(cells: Sequence[Measured]) -> tuple[list[str], list[Row]]:
    """Return the shapes (columns) and a row for every run whose capacity is known."""
    shapes: dict[str, int] = {}
    rows: dict[str, tuple[Measured, dict[str, Held]]] = {}
    for one in cells:
        logged = (one.predicate.get("capacity") or {}).get("logged") or {}
        found = one.cell.get("capacity") or {}
        if not logged and not found:
            continue
        _, held = rows.setdefault(one.run, (one, {}))
        if found:
            shape = _shape(one)
            shapes.setdefault(shape, one.axes.get("prompt", 0))
            asked = max(int(one.cell.get("users") or 1), held[shape].asked if shape in held else 0)
            held[shape] = Held(found.get("effective"), str(found.get("limit") or ""), asked)
    columns = sorted(shapes, key=lambda shape: (shape.split(" ")[0], shapes[shape]))
    return columns, sorted((_row(one, held) for one, held in rows.values()), key=lambda row: (row.subject, row.run))


def _row(one: Measured, held: Mapping[str, Held]) -> Row:
    logged: Mapping[str, Any] = (one.predicate.get("capacity") or {}).get("logged") or {}
    return Row(one.run, one.subject, one.standing.simulated, logged.get("pool_tokens"), logged.get("engines"),
               logged.get("cap"), held)  # fmt: skip


def _shape(one: Measured) -> str:
    prompt = one.axes.get("prompt")
    return str(one.cell.get("workload")) + (f" {show_tokens(prompt)}" if prompt else "")
