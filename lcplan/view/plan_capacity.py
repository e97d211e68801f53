"""A plan's capacity as text and Markdown: what fits per launch and length, which limit binds, where that comes from."""

from __future__ import annotations

from collections.abc import Sequence

from lcplan.base.units import show_tokens
from lcplan.plan.model import Cell, Plan

_ROWS = 60
_COLUMNS = ("launch", "length", "fits", "cap", "effective", "limit", "from", "users")


def plan_capacity_text(plan: Plan) -> str:
    """Return the capacity table for a terminal, "" when nothing is to be measured."""
    rows = _rows(plan)
    if not rows:
        return ""
    from lcplan.view.runs import table

    return "\n".join([_title(plan), table([_COLUMNS, *rows[:_ROWS]]), *_more(rows)])


def plan_capacity_markdown(plan: Plan) -> str:
    """Return the capacity table for a pull request comment, "" when nothing is to be measured."""
    rows = _rows(plan)
    if not rows:
        return ""
    lines = [f"| {' | '.join(row)} |" for row in [_COLUMNS, *rows[:_ROWS]]]
    return "\n".join([f"#### {_title(plan)}", "", lines[0], "|" + "---|" * len(_COLUMNS), *lines[1:], *_more(rows)])


def capacity_mark(cells: Sequence[Cell]) -> str:
    """Return what stands behind a line of cells of which some are capacity-limited, else ""."""
    over = [cell for cell in cells if cell.limited and cell.fits]
    if not over:
        return ""
    if len(cells) > 1:
        return f" [{len(over)} capacity-limited]"
    return f" [capacity-limited: {over[0].users} users, {(over[0].fits or {})['effective']} fit]"


def _title(plan: Plan) -> str:
    over = sum(cell.limited is True for cell in plan.cells)
    return f"Capacity ({over} cells have more users than fit)" if over else "Capacity"


def _rows(plan: Plan) -> list[tuple[str, ...]]:
    """Return a row per launch and length, or one where a pool is not known yet; limited ones first if not all fit."""
    made: dict[tuple[str, int], list[Cell]] = {}
    for cell in plan.cells:
        if cell.fits is not None:
            made.setdefault((cell.launch, 0 if cell.fits["limit"] == "unknown" else cell.length), []).append(cell)
    place = {launch: at for at, (launch, _) in enumerate(made)}
    first = len(made) > _ROWS
    ordered = sorted(made, key=lambda key: (first and not any(c.limited for c in made[key]), place[key[0]], key[1]))
    return [_row(name, made[name, length]) for name, length in ordered]


def _row(launch: str, cells: Sequence[Cell]) -> tuple[str, ...]:
    found = cells[0].fits or {}
    over = sorted({cell.users for cell in cells if cell.limited})
    users = f"max {max(cell.users for cell in cells)}"
    if over:
        users += f"; capacity-limited at {', '.join(map(str, over))}"
    cap = "?" if found["cap"] is None else f"{found['cap']:,}"
    if found["limit"] == "unknown":
        lengths = sorted({cell.length for cell in cells})
        shown = show_tokens(lengths[0]) + (f" to {show_tokens(lengths[-1])}" if len(lengths) > 1 else "")
        return launch, shown, "known after launch", cap, "?", "?", found["cap_source"], users
    by = "" if found["by"] in (None, "formula") else f", {found['by']}"
    ranks = f" x {found['engines']}" if found["engines"] > 1 else ""
    source = f"{found['pool_source']}: {found['pool_tokens']:,}{ranks}{by}" if found["pool_tokens"] is not None else by
    limit = found["cap_source"] if found["limit"] == "cap" else found["limit"]
    return (launch, show_tokens(cells[0].length), f"{found['fits']:,}", cap, f"{found['effective']:,}", limit, source,
            users)  # fmt: skip


def _more(rows: Sequence[object]) -> list[str]:
    return [f"({len(rows) - _ROWS} more rows are in the plan file)"] if len(rows) > _ROWS else []
