"""Whether a plan may still be applied: every side that moved since is named, with the remedy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lcplan.base.canonical import digest
from lcplan.base.diagnostics import Diagnostic, Source, error
from lcplan.plan.model import Plan
from lcplan.recipe.load import Recipes

_REMEDY = "plan again with `lcplan plan` and review it; a plan is never remade silently"


def staleness(
    plan: Plan, plan_id: str, shown: str, recipes: Recipes, lineage: str | None, applied: Sequence[str]
) -> list[Diagnostic]:
    """Return an error for every reason why the plan no longer holds.

    `applied` are the ids of the plans whose applies made the serials 1, 2, ...; a plan's own apply, crash and re-apply
    never make it stale.
    """
    return list(_reasons(plan, plan_id, shown, recipes, lineage, applied))


def _reasons(
    plan: Plan, plan_id: str, shown: str, recipes: Recipes, lineage: str | None, applied: Sequence[str]
) -> Iterator[Diagnostic]:
    def stale(sentence: str) -> Diagnostic:
        return error("stale-plan", sentence, _REMEDY, Source(shown))

    if plan.lineage is not None and plan.lineage != lineage:
        there = f"the state has {lineage[:12]}" if lineage else "there is no state"
        yield stale(f"the plan belongs to lineage {plan.lineage[:12]}, {there}")
    since = applied[plan.serial :]
    others = [one for one in since if one != plan_id]
    if others:
        yield stale(f"the plan was made at serial {plan.serial}, the state is at serial {len(applied)}: "
                    f"plan {others[-1][:12]} was applied since")  # fmt: skip
    elif len(applied) < plan.serial:
        yield stale(f"the plan was made at serial {plan.serial}, the state is only at serial {len(applied)}")
    if plan.recipes != recipes.parsed:
        moved = sorted(
            name for name in {*plan.blobs, *recipes.blobs} if plan.blobs.get(name) != recipes.blobs.get(name)
        )
        yield stale(f"the recipes changed: the plan was made from {plan.recipes[:12]}, they are "
                    f"{recipes.parsed[:12]} now ({', '.join(moved) or 'other values'})")  # fmt: skip
    if plan.variables != recipes.variables:
        yield stale(f"the variables differ: planned with {plan.variables}, given now {recipes.variables}")
    node = digest(recipes.data["nodes"])
    if plan.node != node:
        yield stale(f"the declared node changed: planned for {plan.node[:12]}, declared now {node[:12]}")
