"""A plan as text and as Markdown: summary, groups of cells that share one diff, schedule, warnings.

Both are built from the same sections and cut by whole groups so that they fit a pull request comment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lcplan.base.units import show_seconds, show_tokens
from lcplan.plan.model import Cell, Launch, Plan

LIMIT = 65_000
"""Characters; a comment on GitHub holds 65,536."""
WIDTH = 118
_ORDER = ("-/+", "~", "+", "-", "!", "=")
_WORDS = {"+": "measure", "~": "measure again", "-/+": "relaunch", "-": "stop", "=": "keep", "!": "blocked"}


@dataclass(frozen=True)
class Group:
    """Cells of one launch that share action and reason."""

    action: str
    launch: Launch
    reason: str
    cells: Sequence[Cell]


def plan_text(plan: Plan, plan_id: str) -> str:
    """Return the plan for a terminal."""
    if not plan.changes:
        return "\n".join(["No changes", *_blocked_line(plan)])
    head = _headline(plan, plan_id)
    tail = ["", "Schedule (estimated)", _table(_SCHEDULE, _schedule_rows(plan)), *_gantt(plan)]
    return _fit("\n".join(head), [_group_text(g) for g in groups(plan)], "\n".join(tail))


def plan_markdown(plan: Plan, plan_id: str) -> str:
    """Return the plan for a pull request comment."""
    if not plan.changes:
        return "\n".join(["### lcplan: no changes", *_blocked_line(plan)])
    summary, *rest = _headline(plan, plan_id)
    head = "\n".join([f"### lcplan: {summary}", "", *[f"- {line}" for line in rest]])
    rows = _schedule_rows(plan)
    tail = ["", "#### Schedule (estimated)", "", _pipes(_SCHEDULE, rows)]
    if plan.warnings:
        tail += ["", "#### Warnings", ""]
        tail += [f"- `{w['file']}:{w['line']}` {w['message']}" for w in plan.warnings]
    return _fit(head, [_group_markdown(g) for g in groups(plan)], "\n".join(tail))


def groups(plan: Plan) -> list[Group]:
    """Return the groups, what changes first."""
    launches = {one.id: one for one in plan.launches}
    made: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in plan.cells:
        if cell.action != "=":
            made.setdefault((cell.action, cell.launch, cell.reason), []).append(cell)
    found = [Group(a, launches[name], reason, cells) for (a, name, reason), cells in made.items()]
    return sorted(found, key=lambda g: _ORDER.index(g.action))


_SCHEDULE: tuple[tuple[str, Callable[[Launch], str]], ...] = (
    ("", lambda one: one.action),
    ("launch", lambda one: one.id),
    ("quad", lambda one: "+".join(one.placement.quads) if one.placement else ""),
    ("layout", lambda one: one.label),
    ("runtime", lambda one: one.runtime),
    ("port", lambda one: str(one.placement.port) if one.placement else ""),
    ("starts", lambda one: show_seconds(one.start_s)),
    ("takes", lambda one: show_seconds(one.seconds)),
    ("cells", lambda one: str(sum(c.action in ("+", "~") for c in one.cells))),
)


def _headline(plan: Plan, plan_id: str) -> list[str]:
    s, count = plan.summary, plan.summary["actions"]
    partial = f" (partial: {', '.join(f'--{k} {v}' for k, vs in plan.selectors.items() for v in vs)})" \
        if plan.selectors else ""  # fmt: skip
    lines = [
        f"plan {plan_id[:12]}: {s['launches']['start']} launches, {count['+'] + count['~']} cells to measure{partial}",
        f"cells: {count['+']} new (+), {count['~']} again (~), {count['=']} kept (=), {count['!']} blocked (!)",
        f"{s['gpu_hours']} GPU-hours, makespan {show_seconds(s['makespan_s'])} "
        f"(lower bound {show_seconds(s['lower_bound_s'])}, {s['idle_gpu_hours']} GPU-hours idle)",
    ]
    stale = sum(c.action == "~" for c in plan.cells)
    if stale:
        lines.append(f"{stale} recorded cells become stale or are repeated")
    if plan.runtime == "sim":
        lines.append("runtime sim: a rehearsal; every number of it is simulated and never publishable")
    if plan.warnings:
        lines.append(f"{len(plan.warnings)} warnings")
    return lines


def _blocked_line(plan: Plan) -> list[str]:
    blocked = [c for c in plan.cells if c.action == "!"]
    reasons = sorted({c.reason.removeprefix("blocked: ") for c in blocked})
    return [f"{len(blocked)} cells are blocked: {'; '.join(reasons)}"] if blocked else []


def _group_text(group: Group) -> str:
    head = f"{group.action:>3} {_WORDS[group.action]} {len(group.cells)} cells on {group.launch.id}: {group.reason}"
    return "\n".join(["", head, *[f"      {line}" for line in _names(group.cells)]])


def _group_markdown(group: Group) -> str:
    names = "\n".join(f"- `{line}`" for line in _names(group.cells))
    return f"\n**{group.action}** {_WORDS[group.action]} {len(group.cells)} cells on `{group.launch.id}`: " \
           f"{group.reason}\n\n{names}"  # fmt: skip


def _names(cells: Sequence[Cell]) -> list[str]:
    """Return one line per workload, with the values of its axes."""
    made: dict[str, list[Cell]] = {}
    for cell in cells:
        made.setdefault(cell.workload, []).append(cell)
    lines = []
    for workload, some in made.items():
        if len(some) == 1:
            lines.append(some[0].name)
            continue
        axes: dict[str, set[int]] = {}
        for cell in some:
            for axis, value in cell.axes.items():
                axes.setdefault(axis, set()).add(value)
        shown = ", ".join(f"{axis} {' '.join(map(show_tokens, sorted(axes[axis])))}" for axis in sorted(axes))
        lines.append(f"{workload}: {len(some)} points ({shown})" if shown else f"{workload}: {len(some)} repeats")
    return lines


def _schedule_rows(plan: Plan) -> list[Launch]:
    return sorted((one for one in plan.launches if one.placement), key=lambda one: (one.start_s, one.placement.quads))  # type: ignore[union-attr]


def _gantt(plan: Plan) -> list[str]:
    """Return one line per quad, time to the right."""
    rows = _schedule_rows(plan)
    total = max((one.start_s + one.seconds for one in rows), default=0.0)
    if not total:
        return []
    width, lines = 80, [""]
    numbered = {one.id: i for i, one in enumerate(rows, 1)}
    for quad in sorted({(one.placement.node, q) for one in rows if one.placement for q in one.placement.quads}):
        bar = [" "] * width
        for one in rows:
            if one.placement and one.placement.node == quad[0] and quad[1] in one.placement.quads:
                start, end = int(one.start_s / total * width), int((one.start_s + one.seconds) / total * width)
                label = str(numbered[one.id]).center(max(1, end - start), "=")
                bar[start : max(end, start + 1)] = label[: max(1, end - start)]
        lines.append(f"{quad[0]}/{quad[1]} |{''.join(bar[:width])}| {show_seconds(total)}")
    lines.append("  ".join(f"{i} {name}" for name, i in numbered.items()))
    return lines


def _table(columns: Sequence[tuple[str, Callable[[Launch], str]]], rows: Sequence[Launch]) -> str:
    from io import StringIO

    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_edge=False)
    for name, _ in columns:
        table.add_column(name, no_wrap=name != "layout", justify="right" if name in ("port", "cells") else "left")
    for row in rows:
        table.add_row(*(cell(row) for _, cell in columns))
    out = StringIO()
    Console(file=out, width=WIDTH, color_system=None, legacy_windows=False).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip("\n").splitlines())


def _pipes(columns: Sequence[tuple[str, Callable[[Launch], str]]], rows: Sequence[Launch]) -> str:
    lines = ["| " + " | ".join(name for name, _ in columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(cell(row) for _, cell in columns) + " |" for row in rows]
    return "\n".join(lines)


def _fit(head: str, parts: Sequence[str], tail: str) -> str:
    """Return head, as many whole groups as fit, and tail, at most LIMIT characters."""
    if len(tail) > LIMIT // 2:
        cut = tail[: LIMIT // 2].rsplit("\n", 1)[0]
        tail = f"{cut}\n({tail.count(chr(10)) - cut.count(chr(10))} more lines)"
    room = LIMIT - len(head) - len(tail) - 80
    kept: list[str] = []
    for part in parts:
        if room < len(part) + 1:
            break
        kept.append(part)
        room -= len(part) + 1
    if len(kept) < len(parts):
        kept.append(f"\n({len(parts) - len(kept)} more groups are in the plan file)")
    return "\n".join([head, *kept, tail])
