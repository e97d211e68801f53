"""Launches to the closed list of operations that an apply walks, each with its predecessors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lcplan.plan.model import Launch, Operation

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


def operations(launches: Sequence[Launch]) -> list[Operation]:
    """Return the operations of the scheduled launches, in the order of their start."""
    made: list[Operation] = []
    for launch in sorted(launches, key=lambda one: (one.start_s, one.placement.quads if one.placement else (), one.id)):
        made += _of(launch)
    return made


def _of(launch: Launch) -> Iterator[Operation]:
    before: tuple[str, ...] = tuple(f"{other}/seal" for other in launch.after)
    for step in STEPS:
        if step == "measure":
            for cell in launch.cells:
                if cell.action in ("+", "~"):
                    name = f"{launch.id}/measure/{cell.name}"
                    what = {"cell": cell.name, "fingerprint": cell.fingerprint}
                    yield Operation(name, step, launch.id, before, what)
                    before = (name,)
            continue
        name = f"{launch.id}/{step}"
        detail: dict[str, Any] = {"argv": launch.argv, "env": launch.env} if step == "launch" else {}
        yield Operation(name, step, launch.id, before, detail)
        before = (name,)
