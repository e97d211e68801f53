"""A plan as text and as Markdown: summary, groups of cells that share one diff, schedule, warnings.

Both are built from the same sections and cut by whole groups so that they fit a pull request comment.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from lcplan.base.units import show_seconds, show_tokens
from lcplan.plan.blocks import block_count
from lcplan.plan.model import Cell, Launch, Plan
from lcplan.plan.policy import violations
from lcplan.view.plan_capacity import capacity_mark, plan_capacity_markdown, plan_capacity_text
from lcplan.view.plan_serve import serve_headline, serve_markdown, serve_text
from lcplan.view.schedule import schedule_markdown, schedule_text

LIMIT = 65_000
"""Characters; a comment on GitHub holds 65,536."""
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
        return "\n".join(["No changes", *_notes(plan), *_blocked_line(plan)])
    head = _headline(plan, plan_id)
    tail = [plan_capacity_text(plan), schedule_text(plan)]
    parts = [*serve_text(plan), *(_group_text(g) for g in groups(plan))]
    return _fit("\n".join(head), parts, "\n" + "\n\n".join(filter(None, tail)))


def plan_markdown(plan: Plan, plan_id: str) -> str:
    """Return the plan for a pull request comment."""
    if not plan.changes:
        return "\n".join(["### lcplan: no changes", *_notes(plan), *_blocked_line(plan)])
    summary, *rest = _headline(plan, plan_id)
    head = "\n".join([f"### lcplan: {summary}", "", *[f"- {line}" for line in rest]])
    tail = ["", "\n\n".join(filter(None, [plan_capacity_markdown(plan), schedule_markdown(plan)]))]
    if plan.warnings:
        tail += ["", "#### Warnings", ""]
        tail += [f"- `{w['file']}:{w['line']}` {w['message']}" for w in plan.warnings]
    return _fit(head, [*serve_markdown(plan), *(_group_markdown(g) for g in groups(plan))], "\n".join(tail))


def groups(plan: Plan) -> list[Group]:
    """Return the groups, what changes first."""
    launches = {one.id: one for one in plan.launches}
    made: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in plan.cells:
        if cell.action != "=":
            made.setdefault((cell.action, cell.launch, cell.reason), []).append(cell)
    found = [Group(a, launches[name], reason, cells) for (a, name, reason), cells in made.items()]
    return sorted(found, key=lambda g: _ORDER.index(g.action))


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
    lines += serve_headline(plan)
    stale = sum(c.action == "~" for c in plan.cells)
    if stale:
        lines.append(f"{stale} recorded cells become stale or are repeated")
    if plan.runtime == "sim":
        lines.append("runtime sim: a rehearsal; every number of it is simulated and never publishable")
    if s.get("durations_from_history"):
        lines.append(
            f"times of {s['durations_from_history']} cells are those of earlier runs, the others are estimates"
        )
    blocks = block_count(plan.launches)
    if blocks:
        lines.append(f"repeats in {blocks} blocks, each with every launch once, in an order drawn from the plan")
    lines += _notes(plan) + _benches(plan)
    if plan.warnings:
        lines.append(f"{len(plan.warnings)} warnings")
    return lines


def _notes(plan: Plan) -> list[str]:
    """Return what must be known of a plan beside its numbers: another machine, serve entries, what is left out."""
    s = plan.summary
    lines = [f"apply refuses this plan: {broken.message}" for broken in violations(plan)]
    if s.get("what_if"):
        lines.append(f"what-if: for {s['what_if']}; apply refuses it, nothing counts as recorded")
    evicted = {entry: one.id for one in plan.launches if one.placement for entry in one.placement.evicts}
    for name, kept in s.get("serves", {}).items():
        where = (
            f"{kept['node']}/{'+'.join(kept['quads'])}, GPUs {','.join(map(str, kept['gpus']))}, port {kept['port']}"
        )
        lines.append(
            f"serve entry {name} holds {where}" + (f"; {evicted[name]} preempts it" if name in evicted else "")
        )
    for out in s.get("left_out", ()):
        which = f"{len(out['names'])} cells on {out['launch']} of {', '.join(out['experiments'])}"
        lines.append(f"left out by the budget: {which} ({show_seconds(out['seconds'])}): {_some(out['names'])}")
    return lines


def _benches(plan: Plan) -> list[str]:
    """Return which commands measure the sweeps."""
    found = Counter(shlex.join(one.detail["bench"]) for one in plan.operations if "bench" in one.detail)
    return [f"{count} sweep cells are measured by `{command}`" for command, count in found.items()]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


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
            lines.append(some[0].name + capacity_mark(some))
            continue
        axes: dict[str, set[float]] = {}
        for cell in some:
            for axis, value in cell.axes.items():
                axes.setdefault(axis, set()).add(value)
        shown = ", ".join(f"{axis} {' '.join(map(_axis, sorted(axes[axis])))}" for axis in sorted(axes))
        line = f"{workload}: {len(some)} points ({shown})" if shown else f"{workload}: {len(some)} repeats"
        lines.append(line + capacity_mark(some))
    return lines


def _axis(value: float) -> str:
    return show_tokens(value) if isinstance(value, int) else f"{value:g}"


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
