"""Two plans compared: what came, went and changed."""

from __future__ import annotations

from typing import Any

from lcplan.plan.compare import changed_fields
from lcplan.plan.model import Cell, Launch, Plan


def difference(a: Plan, b: Plan) -> dict[str, Any]:
    """Return what differs from plan `a` to plan `b`: cells and launches by name, fields that changed, totals."""
    cells_a, cells_b = _cells(a), _cells(b)
    launches_a = {one.id: one for one in a.launches}
    launches_b = {one.id: one for one in b.launches}
    changed = {}
    for name in sorted(launches_a.keys() & launches_b.keys()):
        fields = list(changed_fields(_launch(launches_a[name]), _launch(launches_b[name])))
        if fields:
            changed[name] = fields
    return {
        "launches": {
            "added": sorted(launches_b.keys() - launches_a.keys()),
            "removed": sorted(launches_a.keys() - launches_b.keys()),
            "changed": changed,
        },
        "cells_added": sorted(cells_b.keys() - cells_a.keys()),
        "cells_removed": sorted(cells_a.keys() - cells_b.keys()),
        "cells_changed": {
            name: list(changed_fields(_cell(cells_a[name]), _cell(cells_b[name])))
            for name in sorted(cells_a.keys() & cells_b.keys())
            if _cell(cells_a[name]) != _cell(cells_b[name])
        },
        "serves": list(changed_fields(_serves(a), _serves(b))),
        "summary": list(changed_fields(a.summary, b.summary)),
    }


def _cells(plan: Plan) -> dict[str, Cell]:
    return {f"{cell.launch}/{cell.name}": cell for cell in plan.cells}


def _serves(plan: Plan) -> dict[str, Any]:
    return {
        one.name: {
            "action": one.action,
            "reason": one.reason,
            "behaviour": one.launch.behaviour if one.launch else None,
            "place": one.place,
        }
        for one in plan.serves
    }


def _cell(cell: Cell) -> dict[str, Any]:
    return {"action": cell.action, "reason": cell.reason, "definition": dict(cell.definition)}


def _launch(one: Launch) -> dict[str, Any]:
    placed = one.placement
    return {
        "action": one.action,
        "behaviour": one.behaviour,
        "runtime": one.runtime,
        "quads": list(placed.quads) if placed else None,
        "port": placed.port if placed else None,
    }
