"""Use cases around a plan: make one, and load one that may be applied."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from lcplan.apply.lint import lint
from lcplan.apply.snapshot import snapshot
from lcplan.base.diagnostics import Diagnostic, LcplanError, Source, fail, has_errors
from lcplan.plan import file
from lcplan.plan.build import build
from lcplan.plan.model import ACTIVE, Launch, Plan, Snapshot
from lcplan.plan.policy import violations
from lcplan.plan.stale import staleness
from lcplan.plan.wanted import Wanted
from lcplan.recipe.load import Recipes, load
from lcplan.record import state as states

_GIT_LIMIT_S = 5.0


@dataclass(frozen=True)
class Ready:
    """A plan that may be applied."""

    plan: Plan
    id: str
    recipes: Recipes
    lineage: str | None
    shown: str


def make_plan(
    paths: Sequence[Path],
    root: Path,
    *,
    variables: Mapping[str, str],
    runtime: str | None = None,
    target: Sequence[str] = (),
    exclude: Sequence[str] = (),
    replace: Sequence[str] = (),
    budget: str | None = None,
    node: Path | None = None,
    tables: Sequence[str] = (),
    thorough: bool = False,
) -> tuple[Plan, list[Diagnostic]]:
    """Return the plan of recipes against a state directory, and warnings. Raises LcplanError with every error.

    `node` (a recipe file) or `tables` (saved outputs of a machine's tools) take the place of the declared nodes. Such a
    plan counts nothing as recorded, since another machine measured it, and no apply accepts it.
    """
    paths = [_near(path) for path in paths]
    recipes = load(paths, variables)
    recorded, found = snapshot(root, runtime == "sim")
    wanted = Wanted(runtime, target, exclude, replace, capacity=_assess, lint=lint, budget=budget, thorough=thorough)
    if node is not None or tables:
        from lcplan.apply import whatif

        other = whatif.on_declared(recipes, node) if node is not None else whatif.on_observed(recipes, tables)
        if other.what:
            recipes, recorded = other.recipes, Snapshot(durations=recorded.durations, loads=recorded.loads)
            wanted = dataclasses.replace(wanted, what_if=other.what, topologies=other.topologies)
    plan, warnings = build(recipes, recorded, wanted)
    if plan.changes:
        plan.commit, plan.dirty = source_of(paths)
        found += _moved(recipes, plan)
    return plan, [*found, *warnings]


def load_plan(path: Path, root: Path, variables: Mapping[str, str]) -> Ready:
    """Return a plan file that still holds. Raises LcplanError with every reason why it does not."""
    plan, plan_id = read_plan(path)
    given = {name: _text(value) for name, value in plan.variables.items()} | dict(variables)
    recipes = load([Path(root_) for root_ in plan.roots], given)
    state, _ = states.load(root)
    simulated = plan.runtime == "sim"
    applied = state.partition(simulated).plans if state else []
    found = staleness(plan, plan_id, str(path), recipes, state.lineage if state else None, applied)
    found += violations(plan, lambda key: recipes.place("policy", key))
    if has_errors(found):
        raise LcplanError(*found)
    return Ready(plan, plan_id, recipes, state.lineage if state else None, str(path))


def read_plan(path: Path) -> tuple[Plan, str]:
    """Return a plan file's plan and id, stale or not. Raises LcplanError when there is no whole plan in it."""
    try:
        raw = path.read_bytes()
    except OSError as problem:
        raise fail("no-plan", f"cannot read the plan: {problem.strerror}", "make one with `lcplan plan recipes/`",
                   Source(str(path))) from problem  # fmt: skip
    return file.parse(raw, str(path))


def source_of(paths: Sequence[Path]) -> tuple[str | None, bool | None]:
    """Return the last commit that touched the recipe folders, and whether they are dirty; None outside git."""
    folder = paths[0] if paths[0].is_dir() else paths[0].parent
    names = [str(p.resolve()) for p in paths]
    commit = _git(folder, "log", "-1", "--format=%H", "--", *names)
    if not commit:
        return None, None
    status = _git(folder, "status", "--porcelain", "--", *names)
    return commit, bool(status)


def _near(path: Path) -> Path:
    """Return a path inside the working folder as relative to it: a plan is the same however its folder was named."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_absolute() and path.is_relative_to(here) else path


def _assess(recipes: Recipes, launches: Sequence[Launch], recorded: Snapshot, again: Set[str]) -> None:
    from lcplan.apply.capacity import assess

    assess(recipes, launches, recorded.past, again)


def _moved(recipes: Recipes, plan: Plan) -> list[Diagnostic]:
    """Return warnings about tags that moved: only shown, since what a registry says is no part of a plan."""
    if not any(engine.get("pinned") for engine in recipes.data["engines"].values()):
        return []
    from lcplan.apply.lock_images import moved_tags

    served = [one.launch for one in plan.serves if one.launch is not None and one.action in ACTIVE]
    return moved_tags(recipes, [*plan.launches, *served])


def _git(folder: Path, *words: str) -> str | None:
    try:
        ran = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=_GIT_LIMIT_S,
                             check=False, stdin=subprocess.DEVNULL)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ran.stdout.strip() if ran.returncode == 0 else None


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
