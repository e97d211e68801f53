"""A plan's schedule as text and Markdown: what runs when and where, with a bar for every group of GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from lcplan.base.units import show_seconds
from lcplan.plan.model import ACTIVE, Launch, Placement, Plan

WIDTH = 118
_BAR = 76
_MOST = 150
"""Rows of a table, and bars; who needs more reads the plan file."""
Columns = Sequence[tuple[str, Callable[[Launch], str]]]


def schedule_text(plan: Plan) -> str:
    """Return the schedule for a terminal: when, bars, where and why; "" when nothing is placed."""
    rows, blocked = _rows(plan), _blocked(plan)
    parts = ["Schedule (estimated)", _table(_when(rows), rows), "", *_bars(plan, rows), ""] if rows else []
    if rows or blocked:
        parts += ["Placement", _table(_where(rows), [*rows, *blocked]), *_roles([*rows, *blocked])]
    return "\n".join(parts)


def schedule_markdown(plan: Plan) -> str:
    """Return the schedule for a pull request comment; "" when nothing is placed."""
    rows, blocked = _rows(plan), _blocked(plan)
    parts = []
    if rows:
        parts += ["#### Schedule (estimated)", "", _pipes(_when(rows), rows), "", "```", *_bars(plan, rows), "```", ""]
    if rows or blocked:
        parts += ["#### Placement", "", _pipes(_where(rows), [*rows, *blocked]), ""]
        parts += [f"- {line.strip()}" for line in _roles([*rows, *blocked])]
    return "\n".join(parts).rstrip()


def _rows(plan: Plan) -> list[Launch]:
    """Return the launches that run, as they start."""
    some = [(one.start_s, one.placement.node, one.placement.quads, one.placement.gpus, one)
            for one in plan.launches if one.placement and one.action in ACTIVE]  # fmt: skip
    return [row[-1] for row in sorted(some, key=lambda row: row[:-1])]


def _blocked(plan: Plan) -> list[Launch]:
    return [one for one in plan.launches if one.placement and one.action not in ACTIVE]


def _when(rows: Sequence[Launch]) -> Columns:
    numbers = {one.id: str(at) for at, one in enumerate(rows, 1)}
    return (
        ("#", lambda one: numbers[one.id]),
        ("", lambda one: one.action),
        ("launch", lambda one: one.id),
        ("quad", lambda one: _quads(_placed(one))),
        ("layout", lambda one: one.label),
        ("runtime", lambda one: one.runtime),
        ("starts", lambda one: show_seconds(one.start_s)),
        ("takes", lambda one: show_seconds(one.seconds)),
        ("cells", lambda one: str(sum(c.action in ("+", "~") for c in one.cells))),
    )


def _where(rows: Sequence[Launch]) -> Columns:
    numbers = {one.id: str(at) for at, one in enumerate(rows, 1)}
    return (
        ("#", lambda one: numbers.get(one.id, one.action)),
        ("node", lambda one: _placed(one).node),
        ("quad", lambda one: _quads(_placed(one))),
        ("GPUs", lambda one: _gpus(_placed(one).gpus)),
        ("CPUs", lambda one: _placed(one).cpus or "any"),
        ("NUMA", lambda one: ",".join(map(str, _placed(one).numa))),
        ("ports", lambda one: _ports(_placed(one).ports)),
        ("why", lambda one: _placed(one).reason + (f" ({one.id} is blocked)" if one.action not in ACTIVE else "")),
    )


def _roles(rows: Sequence[Launch]) -> list[str]:
    """Return a line for every server of split layouts."""
    return [
        f"  {one.id}/{role}: quad {_quads(server)}, GPUs {_gpus(server.gpus) or 'none'}, CPUs {server.cpus or 'any'}, "
        f"ports {_ports(server.ports)}"
        for one in rows[:_MOST]
        for role, server in sorted(_placed(one).roles.items())
    ]


def _placed(one: Launch) -> Placement:
    assert one.placement is not None
    return one.placement


def _quads(placed: Placement) -> str:
    return "+".join(placed.quads)


def _gpus(gpus: Sequence[int]) -> str:
    run = len(gpus) > 2 and list(gpus) == list(range(gpus[0], gpus[-1] + 1))
    return f"{gpus[0]}-{gpus[-1]}" if run else ",".join(map(str, gpus))


def _ports(ports: tuple[int, int]) -> str:
    return str(ports[0]) if ports[0] == ports[1] else f"{ports[0]}-{ports[1]}"


def _bars(plan: Plan, rows: Sequence[Launch]) -> list[str]:
    """Return one line for all GPUs of a quad with the same schedule, time to the right, and how busy they are."""
    total = max((one.start_s + one.seconds for one in rows), default=0.0)
    if not total:
        return []
    lanes = islice(_lanes(rows), _MOST)
    lines = [
        (name, _bar(some, total), f"{sum(one.seconds for _, one in some) / total:.0%} busy") for name, some in lanes
    ]
    for name, kept in plan.summary.get("serves", {}).items():
        where = f"{kept['node']}/{'+'.join(kept['quads'])} GPU {_gpus(kept['gpus'])}"
        lines.append((where, f" serve {name} ".center(_BAR, "#")[:_BAR], "held"))
    width = max(len(name) for name, _, _ in lines)
    return [f"{name:<{width}} |{bar}| {said}" for name, bar, said in lines] + [
        f"{'':<{width}}  0{show_seconds(total):>{_BAR - 1}}"
    ]


def _lanes(rows: Sequence[Launch]) -> Iterator[tuple[str, list[tuple[int, Launch]]]]:
    """Yield GPUs that run the same launches, with these and their numbers. A node-wide launch is on all its quads."""
    by_gpu: dict[tuple[str, str, int], list[tuple[int, Launch]]] = {}
    quads: dict[tuple[str, int], str] = {}
    for row in rows:
        placed = _placed(row)
        if len(placed.quads) == 1:
            quads.update({(placed.node, gpu): placed.quads[0] for gpu in placed.gpus})
    for at, row in enumerate(rows, 1):
        placed = _placed(row)
        for gpu in placed.gpus:
            quad = quads.get((placed.node, gpu), _quads(placed))
            by_gpu.setdefault((placed.node, quad, gpu), []).append((at, row))
    same: dict[tuple[str, str, tuple[int, ...]], list[int]] = {}
    for (node, quad, gpu), some in by_gpu.items():
        same.setdefault((node, quad, tuple(at for at, _ in some)), []).append(gpu)
    for (node, quad, numbers), gpus in sorted(same.items(), key=lambda item: (item[0][0], item[1])):
        name = f"{node}/{quad} GPU {_gpus(sorted(gpus))}"
        yield name, [(at, rows[at - 1]) for at in numbers]


def _bar(some: Sequence[tuple[int, Launch]], total: float) -> str:
    bar = [" "] * _BAR
    for number, one in some:
        start = min(_BAR - 1, int(one.start_s / total * _BAR))
        end = max(start + 1, int((one.start_s + one.seconds) / total * _BAR))
        label = str(number).center(end - start - 1, "=") if end - start > len(str(number)) else "=" * (end - start - 1)
        bar[start:end] = f"[{label}"
    return "".join(bar[:_BAR])


def _table(columns: Columns, rows: Sequence[Launch]) -> str:
    from io import StringIO

    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_edge=False)
    for name, _ in columns:
        wraps = name in ("layout", "why", "CPUs")
        table.add_column(name, no_wrap=not wraps, justify="right" if name in ("#", "cells") else "left")
    for row in rows[:_MOST]:
        table.add_row(*(cell(row) for _, cell in columns))
    out = StringIO()
    Console(file=out, width=WIDTH, color_system=None, legacy_windows=False).print(table)
    return "\n".join([*(line.rstrip() for line in out.getvalue().rstrip("\n").splitlines()), *_more(rows)])


def _pipes(columns: Columns, rows: Sequence[Launch]) -> str:
    lines = ["| " + " | ".join(name for name, _ in columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(row) for _, cell in columns) + " |" for row in rows[:_MOST]]
    return "\n".join([*lines, *_more(rows)])


def _more(rows: Sequence[Launch]) -> list[str]:
    return [f"({len(rows) - _MOST} more launches are in the plan file)"] if len(rows) > _MOST else []
