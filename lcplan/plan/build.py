"""The pipeline: recipes -> cells -> launches -> comparison; when something is to be done, `arrange` does the rest."""

from __future__ import annotations

from collections.abc import Sequence

from lcplan.base.diagnostics import Diagnostic, has_errors
from lcplan.plan.compare import compare
from lcplan.plan.desired import desired, require_node
from lcplan.plan.draft import draft
from lcplan.plan.model import ACTIVE, Cell, Launch, Plan, Snapshot
from lcplan.plan.wanted import Wanted
from lcplan.recipe.load import Recipes


def build(recipes: Recipes, recorded: Snapshot, wanted: Wanted) -> tuple[Plan, list[Diagnostic]]:
    """Return the plan and its warnings. Raises LcplanError with every error found.

    When every cell is recorded and no server stays up, nothing is placed, checked or predicted: the answer is known.
    """
    problems: list[Diagnostic] = list(recipes.diagnostics)
    require_node(recipes)
    launches, cells = desired(recipes, wanted.runtime, problems)
    chosen, cells, replaced = _narrow(launches, cells, wanted)
    compare(chosen, recorded, replaced)
    staying = bool(recipes.data["serve"] or recorded.serves)
    idle = not any(launch.action in ACTIVE for launch in chosen)
    if idle and not (staying or wanted.thorough or wanted.what_if or has_errors(problems)):
        return draft(recipes, recorded, wanted.runtime, chosen, cells), []
    from lcplan.plan.arrange import arrange

    return arrange(recipes, recorded, wanted, problems, launches, chosen, cells, replaced)


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

    from lcplan.base.select import select

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
