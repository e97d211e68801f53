"""Launches to the closed list of operations that an apply walks, each with its predecessors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lcplan.plan.model import Cell, Launch, Operation

STEPS = (
    "resolve",
    "check_idle",
    "launch",
    "ready",
    "handshake",
    "read_capacity",
    "gate",
    "measure",
    "stop",
    "check_released",
    "seal",
)
"""The operations of one launch, in order; `measure` stands once for each cell."""


def operations(launches: Sequence[Launch], bench: Callable[[Launch, Cell], list[str]]) -> list[Operation]:
    """Return the operations of the scheduled launches, in the order of their start.

    `bench` tells the command that measures a sweep.
    """
    made: list[Operation] = []
    for launch in sorted(launches, key=lambda one: (one.start_s, one.placement.quads if one.placement else (), one.id)):
        made += _of(launch, bench)
    return made


def _of(launch: Launch, bench: Callable[[Launch, Cell], list[str]]) -> Iterator[Operation]:
    before: tuple[str, ...] = tuple(f"{other}/seal" for other in launch.after)
    for step in STEPS:
        if step == "measure":
            for cell in launch.cells:
                if cell.action in ("+", "~"):
                    name = f"{launch.id}/measure/{cell.name}"
                    what: dict[str, Any] = {"cell": cell.name, "fingerprint": cell.fingerprint}
                    if cell.kind == "sweep" and launch.runtime != "sim":
                        what["bench"] = bench(launch, cell)
                    yield Operation(name, step, launch.id, before, what)
                    before = (name,)
            continue
        name = f"{launch.id}/{step}"
        yield Operation(name, step, launch.id, before, _commands(launch) if step == "launch" else {})
        before = (name,)


def _commands(launch: Launch) -> dict[str, Any]:
    """Return argv and env of the server that is asked, and of a split layout those of every server."""
    front = launch.servers[-1]
    made: dict[str, Any] = {"argv": front.argv, "env": front.env}
    if launch.placement is not None and launch.placement.roles:
        made["servers"] = [
            {**one._asdict(), "port": placed.port, "gpus": placed.gpus, "cpus": placed.cpus}
            for one in launch.servers
            for placed in (launch.placement.roles[one.role],)
        ]
    return made
