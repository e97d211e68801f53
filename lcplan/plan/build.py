"""The pipeline: recipes -> cells -> launches -> comparison -> placement -> schedule -> operations -> Plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lcplan.base.canonical import digest
from lcplan.base.diagnostics import Diagnostic, LcplanError, has_errors
from lcplan.base.select import select
from lcplan.plan import estimate
from lcplan.plan.compare import compare
from lcplan.plan.desired import desired, render, require_node
from lcplan.plan.model import Cell, Launch, Plan, Snapshot
from lcplan.plan.operations import operations
from lcplan.plan.schedule import Schedule, check_sizes, quads_of, schedule
from lcplan.recipe.load import Recipes


@dataclass(frozen=True)
class Wanted:
    """What the user asks of a plan beside the recipes. Selectors are texts of --target, --exclude and --replace."""

    runtime: str | None = None
    target: Sequence[str] = ()
    exclude: Sequence[str] = ()
    replace: Sequence[str] = ()
    capacity: Callable[[Recipes, Sequence[Launch]], None] | None = None
    lint: Callable[[Recipes, Sequence[Launch]], Sequence[Diagnostic]] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


def build(recipes: Recipes, recorded: Snapshot, wanted: Wanted) -> tuple[Plan, list[Diagnostic]]:
    """Return the plan and its warnings. Raises LcplanError with every error found."""
    problems: list[Diagnostic] = list(recipes.diagnostics)
    require_node(recipes)
    launches, cells = desired(recipes, wanted.runtime, problems)
    quads = quads_of(recipes.data["nodes"])
    check_sizes(launches, quads, problems)
    if wanted.lint is not None:
        problems += wanted.lint(recipes, launches)
    if has_errors(problems):
        raise LcplanError(*(d for d in problems if d.severity == "error"))
    launches, cells, replaced = _narrow(launches, cells, wanted)
    compare(launches, recorded, replaced)
    todo = [one for one in launches if one.action in ("+", "-/+", "~")]
    for launch in todo:
        _estimate(recipes, launch)
    if wanted.capacity is not None:
        wanted.capacity(recipes, todo)
    times = schedule(todo, quads)
    for launch in todo:
        launch.argv = render(recipes, launch, launch.placement.port if launch.placement else 0)
    plan = Plan(
        lineage=recorded.lineage,
        serial=recorded.serial,
        recipes=recipes.parsed,
        blobs=recipes.blobs,
        roots=recipes.roots,
        variables=recipes.variables,
        node=digest(recipes.data["nodes"]),
        runtime=wanted.runtime,
        selectors={k: list(v) for k, v in (("target", wanted.target), ("exclude", wanted.exclude),
                                           ("replace", wanted.replace)) if v},
        launches=launches,
        cells=cells,
        operations=operations(todo),
        summary=_summary(launches, cells, todo, times),
        warnings=[d.as_json() for d in problems],
        policy=recipes.data["policy"],
        gates={name: e["gates"] for name, e in recipes.data["experiments"].items() if e.get("gates")},
    )  # fmt: skip
    return plan, problems


def facts_of(cell: Cell, launch: Launch) -> dict[str, object]:
    """Return what selectors may ask of a cell."""
    return {
        "experiment": cell.experiments,
        "stack": cell.stack,
        "variant": cell.variant,
        "workload": cell.workload,
        "quad": launch.pin or "any",
        "model": launch.model,
        "engine": launch.engine,
        "runtime": launch.runtime,
        **cell.axes,
        **({"prompt": cell.definition["prompt"]} if "prompt" in cell.definition else {}),
    }


def _narrow(
    launches: list[Launch], cells: list[Cell], wanted: Wanted
) -> tuple[list[Launch], list[Cell], frozenset[str]]:
    """Return what the selectors leave, and the fingerprints to measure again."""
    if not (wanted.target or wanted.exclude or wanted.replace):
        return launches, cells, frozenset()
    by_id = {launch.id: launch for launch in launches}

    def chosen(options: Sequence[str]) -> set[str]:
        return {c.fingerprint for c in select(options, cells, lambda c: facts_of(c, by_id[c.launch]))}

    kept = chosen(wanted.target) if wanted.target else {c.fingerprint for c in cells}
    if wanted.exclude:
        kept -= chosen(wanted.exclude)
    replaced = frozenset(chosen(wanted.replace)) if wanted.replace else frozenset()
    cells = [c for c in cells if c.fingerprint in kept]
    for launch in launches:
        launch.cells = [c for c in launch.cells if c.fingerprint in kept]
    return [one for one in launches if one.cells], cells, replaced


def _estimate(recipes: Recipes, launch: Launch) -> None:
    launch.load_s = estimate.load_seconds(recipes.data["models"][launch.model].get("weights"))
    launch.measure_s = sum(
        estimate.cell_seconds(c.kind, c.definition, launch.engines) for c in launch.cells if c.action in ("+", "~")
    )


def _summary(
    launches: Sequence[Launch], cells: Sequence[Cell], todo: Sequence[Launch], times: Schedule
) -> dict[str, Any]:
    count = dict.fromkeys(("+", "~", "=", "!"), 0)
    for cell in cells:
        count[cell.action] += 1
    return {
        "launches": {"planned": len(launches), "start": len(todo)},
        "actions": count,
        "gpu_hours": round(times.gpu_s / 3600, 2),
        "makespan_s": round(times.makespan),
        "lower_bound_s": round(times.bound),
        "idle_gpu_hours": round(times.idle_gpu_s / 3600, 2),
    }
