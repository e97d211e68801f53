"""Launches that can't be placed, and why: refused before the comparison, blocked where a serve entry is in the way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lcplan.base.diagnostics import Diagnostic, Source, error
from lcplan.plan.model import Launch
from lcplan.plan.place import Machine, Shape, held_reason, placement, reason, refusal, shape_of, slots
from lcplan.recipe.load import Recipes


def refuse(recipes: Recipes, launches: Iterable[Launch], machine: Machine) -> list[tuple[Launch, Diagnostic]]:
    """Return an error for every launch that no node can hold: too large, or a pin that can't be honoured."""
    found = []
    known: dict[tuple[Shape, str], tuple[str, str, str] | None] = {}
    for launch in launches:
        key = shape_of(launch), launch.layout
        if key not in known:
            known[key] = refusal(machine, *key)
        why = known[key]
        if why is not None:
            code, sentence, hint = why
            found.append((launch, error(code, f"{launch.id}: {sentence}", hint, *_places(recipes, launch))))
    return found


def block(launch: Launch, why: str) -> None:
    """Block what of a launch was to be measured; what is recorded stays."""
    for cell in launch.cells:
        if cell.action in ("+", "~"):
            cell.action, cell.reason = "!", f"blocked: {why}"
    launch.blocked, launch.reason = why, f"blocked: {why}"
    launch.action = "=" if any(cell.action == "=" for cell in launch.cells) else "!"


def block_held(launches: Iterable[Launch], machine: Machine) -> None:
    """Block launches that only fit where a serve entry is, unless their experiment preempts it."""
    for launch in launches:
        shape = shape_of(launch)
        if machine.held and not slots(machine, shape):
            block(launch, held_reason(machine, shape))


def place_blocked(launches: Sequence[Launch], machine: Machine) -> None:
    """Place split launches that are blocked, so that a plan shows where their servers would run."""
    for launch in launches:
        if launch.action == "!" and launch.placement is None and (shape := shape_of(launch)).roles:
            found = slots(machine, shape)
            if found:
                launch.placement = placement(machine, found[0], launch.gpus, reason(launch, found[0]))


def _places(recipes: Recipes, launch: Launch) -> list[Source]:
    """Return the pin of the first experiment that has one, and where the layout is declared."""
    experiments = dict.fromkeys(name for cell in launch.cells for name in cell.experiments)
    pins = [recipes.place("experiments", name, "quad") for name in experiments
            if recipes.data["experiments"][name].get("quad", "any") == launch.pin]  # fmt: skip
    roles = [recipes.place("stacks", launch.stack, "roles")] if launch.behaviour.get("roles") else []
    over = ("stacks", launch.stack, "variants", launch.variant or "", "layout")
    layout = recipes.place(*over) if over in recipes.places else recipes.place("stacks", launch.stack, "layout")
    return [*pins[:1], *roles, layout]
