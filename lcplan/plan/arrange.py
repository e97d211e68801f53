"""What is done when there is something to do: check, predict, place, schedule, and turn launches into operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from lcplan.base.diagnostics import Diagnostic, LcplanError, has_errors
from lcplan.plan import estimate
from lcplan.plan.bench import bench
from lcplan.plan.budget import fit, parse_duration
from lcplan.plan.draft import draft
from lcplan.plan.model import ACTIVE, Cell, Launch, Placement, Plan, Snapshot
from lcplan.plan.operations import operations
from lcplan.plan.place import machine_of
from lcplan.plan.refuse import block, block_held, place_blocked, refuse
from lcplan.plan.reserve import reserve
from lcplan.plan.schedule import Schedule, schedule
from lcplan.plan.serve import compare_serves, preempt, serve_launches, serve_operations
from lcplan.plan.servers import servers
from lcplan.recipe.load import Recipes

if TYPE_CHECKING:
    from lcplan.plan.wanted import Wanted


def arrange(
    recipes: Recipes, recorded: Snapshot, wanted: Wanted, problems: list[Diagnostic], every: list[Launch],
    chosen: list[Launch], cells: list[Cell], replaced: Set[str],
) -> tuple[Plan, list[Diagnostic]]:  # fmt: skip
    """Return the plan of the chosen launches, whose cells are compared already, and its warnings.

    `every` are all launches of the recipes: they are checked whether chosen or not. Raises LcplanError.
    """
    machine = machine_of(recipes.data["nodes"])
    unserved: list[Diagnostic] = []
    serves = reserve(recipes, machine, unserved, recorded.serves)
    refused = refuse(recipes, every, machine)
    if wanted.what_if:
        problems += [replace(why, severity="warning") for why in unserved]
    else:
        problems += [*unserved, *(why for _, why in refused)]
    served = serve_launches(recipes, wanted.runtime, serves)
    if wanted.lint is not None:
        problems += wanted.lint(recipes, [*every, *served.values()])
    if has_errors(problems):
        raise LcplanError(*(d for d in problems if d.severity == "error"))
    launches = chosen
    for launch, why in refused:
        block(launch, why.message)
    block_held([one for one in launches if one.action in ACTIVE], machine)
    todo = [one for one in launches if one.action in ACTIVE]
    if wanted.capacity is not None and todo:
        wanted.capacity(recipes, todo, recorded, replaced)
        todo = [one for one in todo if one.action in ACTIVE]
    seconds = _estimate(recipes, todo, recorded)
    left: list[tuple[Launch, Cell]] = []
    if wanted.budget is not None:
        left = fit(todo, machine, seconds, parse_duration(wanted.budget), recipes.data["experiments"])
        launches, cells = _without(left, launches, cells)
        todo = [one for one in launches if one.action in ACTIVE]
    times = schedule(todo, machine)
    place_blocked(launches, machine)
    if todo:
        from lcplan.plan.crossing import crossing_warnings

        problems += crossing_warnings(recipes, launches, wanted.topologies)
    for launch in todo:
        launch.servers = servers(recipes, launch)
    entries = compare_serves(served, recorded, wanted.runtime == "sim")
    preempt(entries, todo)
    plan = draft(recipes, recorded, wanted.runtime, launches, cells)
    plan.selectors = {
        name: list(given)
        for name, given in (
            ("target", wanted.target), ("exclude", wanted.exclude), ("replace", wanted.replace),
            ("budget", [wanted.budget or ""]),
        )
        if any(given)
    }  # fmt: skip
    plan.operations = serve_operations(entries, todo, operations(todo, partial(bench, recipes)))
    plan.summary |= _summary(todo, times) | _notes(wanted, serves, left, seconds, recorded)
    plan.warnings = [d.as_json() for d in problems]
    plan.serves = entries
    return plan, problems


def _estimate(recipes: Recipes, launches: Sequence[Launch], recorded: Snapshot) -> dict[str, float]:
    """Set the times of launches, from history where there is one; return the seconds of their cells to measure."""
    made: dict[str, float] = {}
    for launch in launches:
        weights = recipes.data["models"][launch.model].get("weights")
        launch.load_s = recorded.loads.get(launch.stack) or estimate.load_seconds(weights)
        todo = [cell for cell in launch.cells if cell.action in ("+", "~")]
        for cell in todo:
            known = recorded.durations.get(cell.fingerprint) or recorded.durations.get(f"{cell.recorded}/{cell.name}")
            made[cell.fingerprint] = known or estimate.cell_seconds(cell.kind, cell.definition, launch.engines)
        launch.measure_s = sum(made[cell.fingerprint] for cell in todo)
    return made


def _without(
    left: Sequence[tuple[Launch, Cell]], launches: list[Launch], cells: list[Cell]
) -> tuple[list[Launch], list[Cell]]:
    """Return launches and cells without those that are left out; a launch that keeps only what is recorded is kept."""
    gone = {cell.fingerprint for _, cell in left}
    for one in {launch.id: launch for launch, _ in left}.values():
        one.cells = [cell for cell in one.cells if cell.fingerprint not in gone]
        todo = sum(cell.action in ("+", "~") for cell in one.cells)
        if not todo:
            one.action, one.reason = "=", "the rest is left out by the budget"
        elif one.action == "+":
            one.reason = f"{todo} cells to measure, the rest is left out by the budget"
    return [one for one in launches if one.cells], [cell for cell in cells if cell.fingerprint not in gone]


def _summary(todo: Sequence[Launch], times: Schedule) -> dict[str, Any]:
    return {
        "gpu_hours": round(times.gpu_s / 3600, 2),
        "makespan_s": round(times.makespan),
        "lower_bound_s": round(times.bound),
        "idle_gpu_hours": round(times.idle_gpu_s / 3600, 2),
    }


def _notes(
    wanted: Wanted, serves: Mapping[str, Placement], left: Sequence[tuple[Launch, Cell]], seconds: Mapping[str, float],
    recorded: Snapshot,
) -> dict[str, Any]:  # fmt: skip
    """Return what the summary says beside numbers, only what there is to say."""
    made: dict[str, Any] = {}
    if wanted.what_if:
        made["what_if"] = wanted.what_if
    if serves:
        made["serves"] = {name: {"node": one.node, "quads": list(one.quads), "gpus": list(one.gpus), "port": one.port}
                          for name, one in serves.items()}  # fmt: skip
    known = sum(fingerprint in recorded.durations for fingerprint in seconds)
    if known:
        made["durations_from_history"] = known
    if left:
        out: dict[str, list[Cell]] = {}
        for launch, cell in left:
            out.setdefault(launch.id, []).append(cell)
        made["left_out"] = [
            {
                "launch": name,
                "experiments": sorted({e for cell in some for e in cell.experiments}),
                "names": [cell.name for cell in some],
                "seconds": round(sum(seconds[cell.fingerprint] for cell in some)),
            }
            for name, some in out.items()
        ]
    return made
