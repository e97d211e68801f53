"""Serve entries: servers that stay up, desired against what the state says that runs and what was seen of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lcplan.engine.base import RUN_ID
from lcplan.plan.compare import changed_fields
from lcplan.plan.desired import server_launch
from lcplan.plan.model import Launch, Operation, Placement, Serve, Snapshot
from lcplan.plan.servers import servers
from lcplan.recipe.load import Recipes

SERVE_STEPS = ("serve_stop", "serve_start", "serve_ready")
"""The operations of one serve entry, in order."""


def serve_launches(recipes: Recipes, runtime: str | None, placements: Mapping[str, Placement]) -> dict[str, Launch]:
    """Return the launch of every serve entry that has a place; its served name is that of the entry."""
    made: dict[str, Launch] = {}
    for name, placed in placements.items():
        entry = recipes.data["serve"][name]
        launch = server_launch(recipes, entry["stack"], entry.get("variant"), runtime)
        launch.id, launch.source, launch.placement = f"serve/{name}", str(recipes.place("serve", name)), placed
        launch.servers = [one._replace(argv=[name if word == RUN_ID else word for word in one.argv])
                          for one in servers(recipes, launch)]  # fmt: skip
        made[name] = launch
    return made


def compare_serves(wanted: Mapping[str, Launch], recorded: Snapshot, rehearsal: bool) -> list[Serve]:
    """Return what becomes of every entry: declared ones in their order, then recorded ones whose entry is gone.

    A rehearsal leaves alone what is served for real.
    """
    made = [_entry(name, launch, recorded, rehearsal) for name, launch in wanted.items()]
    for name, known in sorted(recorded.serves.items()):
        if name not in wanted and not (rehearsal and not known["simulated"]):
            drift = list(recorded.drift.get(name, ()))
            made.append(Serve(name, None, "-", "no recipe declares it any more", drift, known["run"], known["place"]))
    return made


def preempt(serves: Sequence[Serve], launches: Sequence[Launch]) -> None:
    """Note which launches an entry must leave for; it is started again after them."""
    for one in serves:
        for launch in sorted(launches, key=lambda other: other.start_s):
            if launch.placement is not None and one.name in launch.placement.evicts:
                one.preempted_by = (*one.preempted_by, launch.id)
        if one.preempted_by and one.action == "=":
            one.action, one.makes_way = "-/+", True
            one.reason = f"makes way for {', '.join(one.preempted_by)} and is started again after that"
        elif one.preempted_by:
            one.reason += f"; after {', '.join(one.preempted_by)}, for which it makes way"


def serve_operations(
    serves: Sequence[Serve], launches: Sequence[Launch], steps: Sequence[Operation]
) -> list[Operation]:
    """Return the operations of the entries and then those of the launches, which wait for the GPUs they need.

    An entry is stopped at once, one that is preempted when its launch begins; it is started when its GPUs and its port
    are free.
    """
    by_id = {one.id: one for one in launches}
    stops = {one.name: _stop(one, by_id) for one in serves if one.action in ("-", "-/+")}
    made: list[Operation] = list(stops.values())
    for one in serves:
        if one.launch is not None and one.action in ("+", "-/+"):
            before = [stops[other.name].id for other in serves
                      if other.name in stops and (other is one or _meets(other, one.place))]  # fmt: skip
            before += [f"{launch}/seal" for launch in one.preempted_by]
            made += _starts(one.name, one.launch, tuple(before))
    for step in steps:
        placed = by_id[step.launch].placement
        if step.op == "resolve" and placed is not None:
            waits = [stops[one.name].id for one in serves if one.name in stops and _meets(one, place_of(placed))]
            step = step._replace(after=(*step.after, *waits))
        made.append(step)
    return made


def spec_of(launch: Launch) -> dict[str, Any]:
    """Return what decides how an entry is served; a change of any part forces a relaunch. Plain JSON."""
    assert launch.placement is not None
    return {
        **{key: value for key, value in launch.behaviour.items() if key != "quad"},
        "runtime": launch.runtime,
        "docker": launch.docker if launch.runtime == "docker" else {},
        "place": place_of(launch.placement),
        "command": [list(one.argv) for one in launch.servers],
    }


def place_of(placed: Placement) -> dict[str, Any]:
    """Return where a placement is, as plain JSON."""
    made: dict[str, Any] = {"node": placed.node, "gpus": list(placed.gpus), "cpus": placed.cpus, "port": placed.port}
    if placed.roles:
        made["roles"] = {role: place_of(one) for role, one in placed.roles.items()}
    return made


def _entry(name: str, launch: Launch, recorded: Snapshot, rehearsal: bool) -> Serve:
    assert launch.placement is not None
    made = Serve(name, launch, "+", "not running yet", place=place_of(launch.placement))
    known = recorded.serves.get(name)
    if launch.blocked:
        return replace(made, action="!", reason=f"blocked: {launch.blocked}")
    if known is None:
        return made
    if rehearsal and not known["simulated"]:
        return replace(made, action="!", reason="blocked: it is served for real, which a rehearsal leaves alone")
    made.recorded, made.held, made.drift = known["run"], known["place"], list(recorded.drift.get(name, ()))
    edits = _edits(known["spec"], spec_of(launch))
    if edits:
        more = f" (and {len(edits) - 3} more)" if len(edits) > 3 else ""
        made.action, made.reason = "-/+", "; ".join(edits[:3]) + more
    elif made.drift:
        made.action, made.reason = "-/+", f"drift: {made.drift[0]}"
    else:
        made.action, made.reason = "=", "runs as recorded"
    return made


def _edits(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the declared fields that differ; the command line alone when nothing else explains it."""
    found = list(changed_fields({**before, "command": None}, {**after, "command": None}))
    if not found and before["command"] != after["command"]:
        found = ["the command line of the same recipe is another one in this version of lcplan"]
    return found


def _stop(one: Serve, launches: Mapping[str, Launch]) -> Operation:
    # An entry that moves leaves at once: who needs its old place does not wait for who needs its new one.
    waits = bool(one.preempted_by) and one.held == one.place
    before = tuple(f"{other}/seal" for other in launches[one.preempted_by[0]].after) if waits else ()
    detail = {"serve": one.name, "run": one.recorded, "makes_way": one.makes_way}
    return Operation(f"serve/{one.name}/serve_stop", "serve_stop", f"serve/{one.name}", before, detail)


def _starts(name: str, launch: Launch, before: tuple[str, ...]) -> Iterator[Operation]:
    front = launch.servers[-1]
    detail: dict[str, Any] = {"serve": name, "argv": front.argv, "env": front.env}
    if len(launch.servers) > 1:
        detail["servers"] = [one._asdict() for one in launch.servers]
    start = f"{launch.id}/serve_start"
    yield Operation(start, "serve_start", launch.id, before, detail)
    yield Operation(f"{launch.id}/serve_ready", "serve_ready", launch.id, (start,), {"serve": name})


def _meets(one: Serve, place: Mapping[str, Any]) -> bool:
    """Whether what an entry holds now is also part of a place."""
    held = one.held or one.place
    same_port = held["port"] == place["port"]
    return bool(held["node"] == place["node"] and (same_port or {*held["gpus"]} & {*place["gpus"]}))
