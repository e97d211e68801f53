"""The engines' own checks over all launches of a plan, with each model's config.json where it can be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lcplan.base.diagnostics import Diagnostic, Source
from lcplan.plan.model import Launch
from lcplan.plan.servers import role_stacks, server_spec
from lcplan.recipe.expand import resolve_stack
from lcplan.recipe.load import Recipes

if TYPE_CHECKING:
    from lcplan.engine.base import ServerSpec
    from lcplan.engine.lint import LintFacts


def lint(recipes: Recipes, launches: Sequence[Launch]) -> list[Diagnostic]:
    """Return what the engines find wrong, each finding once."""
    from lcplan.engine.lint import lint as engine_lint

    found: dict[tuple[str, str, str], Diagnostic] = {}
    specs: dict[tuple[str, str | None], ServerSpec] = {}
    for launch in launches:
        stack = resolve_stack(recipes.data, launch.stack, launch.variant)
        specs[launch.stack, launch.variant] = spec = server_spec(recipes, stack)
        roles = role_stacks(recipes, stack) if spec.layout.split else {}
        each = [server_spec(recipes, one, role) for role, one in roles.items()] or [spec]
        facts = _facts(recipes, launch, stack)
        for one in (one for server in each for one in engine_lint(server, facts)):
            # Variants of one stack repeat what the stack itself says: the same finding at the same place is one.
            found.setdefault((one.code, one.message if one.source is None else str(one.source), one.severity), one)
    return [*found.values(), *_siblings(recipes, launches, specs)]


def _facts(recipes: Recipes, launch: Launch, stack: Mapping[str, Any]) -> LintFacts:
    from lcplan.apply.capacity import model_config
    from lcplan.engine.lint import LintFacts

    container = launch.runtime == "docker"
    docker = stack.get("docker", {})
    model = recipes.data["models"][launch.model]
    return LintFacts(
        image=launch.image if launch.image else None,
        ipc=docker.get("ipc") if container else "host",
        shm_size=docker.get("shm_size"),
        network=docker.get("network") if container else "host",
        config=model_config(model),
        moe=model.get("moe"),
        users_max=max((c.users for c in launch.cells), default=None),
        source_of=_places(recipes, launch),
    )


def _siblings(
    recipes: Recipes, launches: Sequence[Launch], specs: Mapping[tuple[str, str | None], ServerSpec]
) -> list[Diagnostic]:
    """Notes on stacks that differ from all others of an experiment in a flag that no variant names."""
    from lcplan.engine.lint import siblings

    members: dict[str, dict[str, ServerSpec]] = {}
    places: dict[str, Source] = {}
    for launch in launches:
        name = f"{launch.stack}/{launch.variant}" if launch.variant else launch.stack
        places[name] = recipes.place("stacks", launch.stack)
        for experiment in dict.fromkeys(name for cell in launch.cells for name in cell.experiments):
            members.setdefault(experiment, {})[name] = specs[launch.stack, launch.variant]
    varied = {
        flag.lstrip("-").replace("_", "-")
        for stack in recipes.data["stacks"].values()
        for overlay in stack.get("variants", {}).values()
        for flag in overlay.get("args", {})
    }
    found = [note for group in members.values() for note in siblings(group, varied, places)]
    return list({note.message: note for note in found}.values())


def _places(recipes: Recipes, launch: Launch) -> Callable[[str], Source | None]:
    def place(what: str) -> Source | None:
        path = what.split(".", 1)
        if launch.variant:
            over = ("stacks", launch.stack, "variants", launch.variant, *path)
            if over in recipes.places:
                return recipes.place(*over)
        if path[0] == "image":
            return recipes.place("engines", launch.engine, "image")
        if ("stacks", launch.stack, *path) in recipes.places:
            return recipes.place("stacks", launch.stack, *path)
        if ("defaults", *path) in recipes.places:
            return recipes.place("defaults", *path)
        return recipes.place("stacks", launch.stack)

    return place
