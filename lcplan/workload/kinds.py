"""The kinds of workload by name. Each is a coroutine function that measures one cell and returns its findings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from lcplan.workload import agent, grid, needle, oneshot, ramp, sweep
from lcplan.workload.measurement import Measurement
from lcplan.workload.segment import Findings

KINDS: Mapping[str, Callable[[Measurement], Awaitable[Findings]]] = {
    "needle": needle.run,
    "oneshot": oneshot.run,
    "grid": grid.run,
    "sweep": sweep.run,
    "agent": agent.run,
    "ramp": ramp.run,
}
