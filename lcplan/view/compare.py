"""A comparison of two groups of repeats as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lcplan.view.runs import HEADLINES, table

if TYPE_CHECKING:
    from lcplan.audit.compare import Comparison, Row, Spread

_BY_CHANCE = 0.05


def compare_text(made: Comparison) -> str:
    """Return the headline figures of every cell, and every other one with a difference."""
    lines = [f"A {', '.join(made.a)}", f"B {', '.join(made.b)}"]
    if made.simulated:
        lines.append("simulated: no measurement")
    shown = [row for row in made.rows if row.claimed or row.metric in HEADLINES]
    for cell in dict.fromkeys(row.cell for row in shown):
        lines += ["", cell, table([_line(row) for row in shown if row.cell == cell], indent=2)]
    claimed = sum(row.claimed for row in made.rows)
    lines += ["", f"{claimed} of {len(made.rows)} figures differ" + _chance(made, claimed), *made.left_out]
    return "\n".join(lines)


def _line(row: Row) -> list[str]:
    return [row.metric, f"A {_spread(row.a)}", f"B {_spread(row.b)}", row.unit, row.sentence]


def _spread(one: Spread) -> str:
    if one.n == 1:
        return f"{one.mean:,.5g}"
    return f"{one.median:,.5g} [{one.min:,.5g} - {one.max:,.5g}] n={one.n}, mean {one.mean:,.5g} ± {one.half_width:.2g}"


def _chance(made: Comparison, claimed: int) -> str:
    tried = sum(row.half_width is not None for row in made.rows)
    return f"; of {tried} that can, {tried * _BY_CHANCE:.0f} may by chance alone" if claimed else ""
