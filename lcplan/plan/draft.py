"""A plan without operations: what it was made from, its launches and cells, and how many of which."""

from __future__ import annotations

from lcplan.base.canonical import digest
from lcplan.plan.model import ACTIVE, Cell, Launch, Plan, Snapshot
from lcplan.recipe.load import Recipes


def draft(recipes: Recipes, recorded: Snapshot, runtime: str | None, launches: list[Launch], cells: list[Cell]) -> Plan:
    """Return the plan of compared launches that does nothing yet."""
    count = dict.fromkeys(("+", "~", "=", "!"), 0)
    for cell in cells:
        count[cell.action] += 1
    start = sum(one.action in ACTIVE for one in launches)
    return Plan(
        lineage=recorded.lineage,
        serial=recorded.serial,
        recipes=recipes.parsed,
        blobs=recipes.blobs,
        roots=recipes.roots,
        variables=recipes.variables,
        node=digest(recipes.data["nodes"]),
        runtime=runtime,
        selectors={},
        launches=launches,
        cells=cells,
        operations=[],
        summary={
            "launches": {"planned": len(launches), "start": start},
            "actions": count,
            **dict.fromkeys(("gpu_hours", "makespan_s", "lower_bound_s", "idle_gpu_hours"), 0),
        },
        warnings=[],
        policy=recipes.data["policy"],
        gates={name: e["gates"] for name, e in recipes.data["experiments"].items() if e.get("gates")},
    )
