"""GPUs that serve entries hold for the whole plan: reserved before any experiment is placed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lcplan.base.diagnostics import Diagnostic, error
from lcplan.base.layout import parse_layout
from lcplan.plan.model import Placement
from lcplan.plan.place import Machine, Shape, Slot, held_reason, placement, refusal, servers, slots
from lcplan.recipe.expand import resolve_stack
from lcplan.recipe.load import Recipes


def reserve(
    recipes: Recipes, machine: Machine, problems: list[Diagnostic], recorded: Mapping[str, Mapping[str, Any]]
) -> dict[str, Placement]:
    """Return the placement of every serve entry and mark its GPUs and port in `machine` as held.

    Pinned entries come first, then those that are `recorded` as running, then the others in declared order. Where there
    is a choice an entry stays where it runs, and else keeps off quads that an experiment is pinned to. An entry without
    a place, or with a port that another one has, is an error at its line.
    """
    entries: Mapping[str, Mapping[str, Any]] = recipes.data["serve"]
    pinned = {one.get("quad", "any") for one in recipes.data["experiments"].values()}
    made: dict[str, Placement] = {}
    owners: dict[tuple[str, int], str] = {}
    for name in sorted(entries, key=lambda one: (entries[one].get("quad", "any") == "any", one not in recorded)):
        entry = entries[name]
        stack = resolve_stack(recipes.data, entry["stack"], entry.get("variant"))
        pin = entry.get("quad", "any")
        roles = servers(stack["layout"], stack)
        gpus = sum(role.count * role.gpus for role in roles) or parse_layout(stack["layout"]).gpus
        shape = Shape(gpus, None if pin == "any" else pin, roles=roles)
        free = slots(machine, shape)
        if not free:
            problems.append(_unplaced(recipes, name, machine, shape, stack["layout"]))
            continue
        here = recorded[name]["place"] if name in recorded else {}
        slot = min(free, key=lambda one: (not _is_at(machine, one, shape.gpus, here), *_wanted(one, pinned)))
        one = placement(machine, slot, shape.gpus, f"serve entry {name}: {stack['layout']} on quad "
                        f"{'+'.join(dict.fromkeys(part.quad.name for part in slot.parts))}")  # fmt: skip
        if entry.get("port"):
            one.port = entry["port"]
        other = owners.setdefault((slot.node, one.port), name)
        if other != name:
            problems.append(error(
                "ports-overlap", f"serve entries {other} and {name} both have port {one.port} of {slot.node}",
                "give one another `port:`", recipes.place("serve", name, "port"), recipes.place("serve", other, "port"),
            ))  # fmt: skip
        machine.held.update(dict.fromkeys(slot.numbers, name))
        machine.taken.setdefault(slot.node, set()).add(one.port)
        made[name] = one
    return {name: made[name] for name in entries if name in made}


def _is_at(machine: Machine, slot: Slot, gpus: int, place: Mapping[str, Any]) -> bool:
    """Whether a slot is where a server runs already."""
    return bool(place) and (slot.node, list(placement(machine, slot, gpus, "").gpus)) == (place["node"], place["gpus"])


def _wanted(slot: Slot, pinned: set[str]) -> tuple[bool, int]:
    """Return the order of preference: quads that no experiment asks for first, then as declared."""
    return any(part.quad.name in pinned for part in slot.parts), slot.numbers[0]


def _unplaced(recipes: Recipes, name: str, machine: Machine, shape: Shape, layout: str) -> Diagnostic:
    why = refusal(machine, shape, layout)
    place = recipes.place("serve", name, "quad")
    if why is not None:
        return error(why[0], f"serve entry {name}: {why[1]}", why[2], place)
    return error("serve-not-placed", f"serve entry {name} finds no free GPUs: {held_reason(machine, shape)}",
                 "remove an entry, or add a node", place)  # fmt: skip
