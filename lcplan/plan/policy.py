"""The campaign's policy: what a plan may not do, whoever reviews it. A plan that breaks it is shown but not applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lcplan.base.diagnostics import Diagnostic, Source, error
from lcplan.plan.model import Cell, Plan

_SHOWN = 3


def violations(plan: Plan, place: Callable[[str], Source | None] = lambda key: None) -> list[Diagnostic]:
    """Return an error for everything in a plan that its policy forbids. `place` tells where a policy's key stands.

    Only real records can be published: a plan for the simulator never breaks the rules about them.
    """
    return [*_moving_tags(plan), *_gpu_hours(plan, place), *_records(plan, place)]


def _moving_tags(plan: Plan) -> Iterator[Diagnostic]:
    if plan.policy.get("moving_tags") != "deny":
        return
    for one in plan.warnings:
        if one["code"] == "moving-tag":
            where = Source(one["file"], one["line"], one["column"]) if one["file"] else None
            hint = "name a version, pin the digest, or run `lcplan lock`"
            yield error("policy-moving-tag", f"the policy denies moving tags: {one['message']}", hint, where)


def _gpu_hours(plan: Plan, place: Callable[[str], Source | None]) -> Iterator[Diagnostic]:
    most, needed = plan.policy.get("gpu_hours"), plan.summary["gpu_hours"]
    if most is not None and needed > most:
        sentence = f"the plan takes {needed:g} GPU-hours, the policy allows {most:g}"
        hint = "narrow it with --target, --exclude or --budget"
        yield error("policy-gpu-hours", sentence, hint, place("gpu_hours"))


def _records(plan: Plan, place: Callable[[str], Source | None]) -> Iterator[Diagnostic]:
    if plan.runtime == "sim":
        return
    stale = [cell for cell in plan.cells if cell.action == "~" and cell.recorded]
    if stale and plan.policy.get("relaunch_published") == "deny":
        sentence = f"the plan measures {len(stale)} recorded cells again, the policy denies it: {_some(stale)}"
        hint = "retract what is wrong (`lcplan runs retract`), or declare the change as a variant"
        yield error("policy-relaunch", sentence, hint, place("relaunch_published"))
    most = plan.policy.get("max_stale_cells")
    if most is not None and len(stale) > most:
        sentence = f"{len(stale)} recorded cells become stale or are repeated, the policy allows {most}: {_some(stale)}"
        yield error("policy-stale-cells", sentence, "apply the change in parts", place("max_stale_cells"))


def _some(cells: list[Cell]) -> str:
    more = f" and {len(cells) - _SHOWN} more" if len(cells) > _SHOWN else ""
    return ", ".join(f"{cell.name} on {cell.recorded} ({cell.reason})" for cell in cells[:_SHOWN]) + more
