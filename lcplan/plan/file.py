"""The plan file: canonical JSON, one line per launch, cell and operation, stable under git."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from lcplan.base.canonical import dumps
from lcplan.base.diagnostics import Source, fail
from lcplan.plan.model import FINGERPRINT_VERSION, Cell, Launch, Operation, Placement, Plan, Serve, Server

FORMAT = 1
_OUTSIDE = ("id", "commit", "dirty")
_LINES = ("launches", "cells", "operations", "serves", "warnings")


def as_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as the plan file holds it, its id included."""
    made: dict[str, Any] = {
        "format": FORMAT,
        "fingerprint_version": plan.fingerprint_version,
        "lineage": plan.lineage,
        "serial": plan.serial,
        "recipes": {"parsed": plan.recipes, "blobs": plan.blobs, "roots": list(plan.roots)},
        "vars": plan.variables,
        "node": plan.node,
        "runtime": plan.runtime,
        "partial": plan.selectors,
        "policy": plan.policy,
        "gates": plan.gates,
        "summary": plan.summary,
        "warnings": plan.warnings,
        "launches": [_launch(one) for one in plan.launches],
        "cells": [_cell(one) for one in plan.cells],
        "serves": [_serve(one) for one in plan.serves],
        "operations": [
            {"id": o.id, "op": o.op, "launch": o.launch, "after": list(o.after), **o.detail} for o in plan.operations
        ],
    }
    made["id"] = identity(made)
    made["commit"], made["dirty"] = plan.commit, plan.dirty
    return made


def text(plan: Plan) -> str:
    """Return the content of the plan file."""
    return render_json(as_json(plan))


def render_json(content: Mapping[str, Any]) -> str:
    """Return plan JSON with one line per launch, cell and operation."""
    parts = []
    for key in sorted(content):
        value = content[key]
        if key in _LINES and value:
            body = ",\n".join(dumps(one) for one in value)
            parts.append(f"{dumps(key)}:[\n{body}\n]")
        else:
            parts.append(f"{dumps(key)}:{dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def identity(content: Mapping[str, Any]) -> str:
    """Return the plan id: sha256 of the content without the id itself, the commit and whether it was dirty."""
    inside = {key: value for key, value in content.items() if key not in _OUTSIDE}
    return hashlib.sha256(dumps(inside).encode()).hexdigest()


def parse(raw: bytes, shown: str) -> tuple[Plan, str]:
    """Return the plan of a plan file and its id. Raises LcplanError for a truncated, edited or foreign file."""
    place = Source(shown)
    try:
        content = json.loads(raw)
    except ValueError as problem:
        line = getattr(problem, "lineno", 0)
        column = getattr(problem, "colno", 0)
        raise fail("damaged-plan", "the file is no complete plan", "plan again with `lcplan plan`",
                   Source(shown, line, column)) from problem  # fmt: skip
    if not isinstance(content, dict) or "fingerprint_version" not in content or "id" not in content:
        raise fail("not-a-plan", "the file is no lcplan plan", "make one with `lcplan plan recipes/`", place)
    if not isinstance(content.get("format", 0), int):
        raise fail("not-a-plan", "the format of the plan is no number", "make one with `lcplan plan recipes/`", place)
    if content.get("format", 0) > FORMAT:
        raise fail("newer-plan", f"the plan has format {content['format']}, this version reads {FORMAT}",
                   "use the lcplan that made it", place)  # fmt: skip
    if identity(content) != content["id"]:
        raise fail("edited-plan", "the content of the plan does not match its id: it was edited or damaged",
                   "plan again; a plan is never edited by hand", place)  # fmt: skip
    if content["fingerprint_version"] != FINGERPRINT_VERSION:
        raise fail("stale-plan", f"the plan has fingerprint version {content['fingerprint_version']}, this lcplan has "
                   f"{FINGERPRINT_VERSION}", "plan again", place)  # fmt: skip
    try:
        return _plan(content), content["id"]
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise fail("damaged-plan", f"the plan lacks something: {problem}", "plan again", place) from problem


def _launch(one: Launch) -> dict[str, Any]:
    made: dict[str, Any] = {key: getattr(one, key) for key in _LAUNCH_KEYS}
    made["cells"] = [c.name for c in one.cells]
    made["placement"] = None if one.placement is None else asdict(one.placement)
    made["after"] = list(one.after)
    for key in ("load_s", "measure_s", "start_s"):
        made[key] = round(made[key], 1)
    return made


_LAUNCH_KEYS = tuple(name for name in Launch.__slots__ if name not in ("cells", "servers", "placement"))


def _cell(one: Cell) -> dict[str, Any]:
    return {
        "cell": one.name,
        "fingerprint": one.fingerprint,
        "action": one.action,
        "launch": one.launch,
        "reason": one.reason,
        "experiments": one.experiments,
        "stack": one.stack,
        "variant": one.variant,
        "workload": one.workload,
        "kind": one.kind,
        "axes": one.axes,
        "definition": one.definition,
        "repeat": one.repeat,
        "length": one.length,
        "users": one.users,
        "source": one.source,
        "recorded": one.recorded,
        "blocks": one.blocks,
        "requires": one.requires,
        "fits": one.fits,
        "limited": one.limited,
    }


def _serve(one: Serve) -> dict[str, Any]:
    return {
        "serve": one.name,
        "action": one.action,
        "reason": one.reason,
        "drift": one.drift,
        "recorded": one.recorded,
        "held": one.held,
        "place": one.place,
        "preempted_by": list(one.preempted_by),
        "makes_way": one.makes_way,
        "launch": None if one.launch is None else _launch(one.launch),
        "servers": [] if one.launch is None else [server._asdict() for server in one.launch.servers],
    }


def _read_serve(kept: dict[str, Any]) -> Serve:
    launch = None
    if kept["launch"] is not None:
        launch = _read_launch(kept["launch"], [])
        launch.servers = [Server(**one) for one in kept["servers"]]
    fields = {key: value for key, value in kept.items() if key not in ("serve", "launch", "servers", "preempted_by")}
    return Serve(kept["serve"], launch, preempted_by=tuple(kept["preempted_by"]), **fields)


def _read_launch(kept: dict[str, Any], cells: list[Cell]) -> Launch:
    fields = {k: v for k, v in kept.items() if k not in ("cells", "placement", "after")}
    launch = Launch(**fields, after=tuple(kept["after"]), cells=cells)
    if kept["placement"] is not None:
        launch.placement = _placement(kept["placement"])
    return launch


def _placement(kept: dict[str, Any]) -> Placement:
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in kept.items()}
    fields["roles"] = {role: _placement(one) for role, one in kept["roles"].items()}
    return Placement(**fields)


def _servers(launch: Launch, detail: dict[str, Any] | None) -> list[Server]:
    if detail is None:
        return []
    if "servers" in detail:
        return [Server(**{name: one[name] for name in Server._fields}) for one in detail["servers"]]
    return [Server("", launch.kind, launch.runtime, launch.image, detail["argv"], detail["env"])]


def _plan(content: dict[str, Any]) -> Plan:
    cells = [Cell(name=c["cell"], **{k: v for k, v in c.items() if k != "cell"}) for c in content["cells"]]
    by_launch: dict[str, list[Cell]] = {}
    for cell in cells:
        by_launch.setdefault(cell.launch, []).append(cell)
    operations = [
        Operation(o["id"], o["op"], o["launch"], tuple(o["after"]),
                  {k: v for k, v in o.items() if k not in ("id", "op", "launch", "after")})
        for o in content["operations"]
    ]  # fmt: skip
    commands = {o.launch: o.detail for o in operations if o.op == "launch"}
    launches = []
    for one in content["launches"]:
        launch = _read_launch(one, by_launch.get(one["id"], []))
        launch.servers = _servers(launch, commands.get(launch.id))
        launches.append(launch)
    return Plan(
        lineage=content["lineage"],
        serial=content["serial"],
        recipes=content["recipes"]["parsed"],
        blobs=content["recipes"]["blobs"],
        roots=tuple(content["recipes"]["roots"]),
        variables=content["vars"],
        node=content["node"],
        runtime=content["runtime"],
        selectors=content["partial"],
        launches=launches,
        cells=cells,
        operations=operations,
        summary=content["summary"],
        warnings=content["warnings"],
        policy=content["policy"],
        gates=content["gates"],
        serves=[_read_serve(one) for one in content["serves"]],
        commit=content.get("commit"),
        dirty=content.get("dirty"),
        fingerprint_version=content["fingerprint_version"],
    )
