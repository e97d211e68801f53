"""What of a campaign fits into a time: cells by priority of their experiments, then in declared order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lcplan.base.diagnostics import fail
from lcplan.plan.model import Cell, Launch
from lcplan.plan.place import Machine, Shape, shape_of
from lcplan.plan.schedule import makespan

_UNIT = {"d": 86400, "h": 3600, "min": 60, "m": 60, "s": 1}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(d|h|min|m|s)\s*")


def parse_duration(text: str) -> float:
    """Return the seconds of `6h`, `1h30m`, `90min`, `45s`. Raises LcplanError for anything else, zero included."""
    parts = _DURATION.findall(text.strip())
    seconds = sum(float(number) * _UNIT[unit] for number, unit in parts)
    if not seconds or _DURATION.sub("", text.strip()):
        raise fail("bad-duration", f"'{text}' is no time to plan for", "write for example 6h, 90min or 1h30m")
    return seconds


def fit(
    launches: Sequence[Launch], machine: Machine, seconds: Mapping[str, float], budget_s: float,
    experiments: Mapping[str, Mapping[str, Any]],
) -> list[tuple[Launch, Cell]]:  # fmt: skip
    """Return the cells that are left out so that the makespan of the others stays within a budget.

    `launches` are those to run, `seconds` the estimates of their cells by fingerprint. A cell is taken when all taken
    before it still fit with it, so a long one that does not fit keeps no shorter one out. The measuring time of every
    launch is set to that of its taken cells; nothing else changes.
    """
    if not launches or makespan(launches, machine, thorough=True) <= budget_s:
        return []
    rank = {name: (-one.get("priority", 0), at) for at, (name, one) in enumerate(experiments.items())}
    todo = [(launch, cell) for launch in launches for cell in launch.cells if cell.action in ("+", "~")]
    todo.sort(key=lambda item: min(rank[name] for name in item[1].experiments))
    taking = _Taking(machine, seconds, budget_s)
    for launch in launches:
        launch.measure_s = 0.0
    left: list[tuple[Launch, Cell]] = []
    at, step = 0, len(todo)
    while at < len(todo):
        batch = todo[at : at + step]
        if taking.take(batch):
            at, step = at + len(batch), step * 2
        elif len(batch) == 1:
            left += batch
            at += 1
        else:
            step = len(batch) // 2
    return left


class _Taking:
    """Launches with the cells taken so far. `failed` is the least time that did not fit, by launch or shape."""

    def __init__(self, machine: Machine, seconds: Mapping[str, float], budget_s: float) -> None:
        self.machine, self.seconds, self.budget_s = machine, seconds, budget_s
        self.taken: dict[str, Launch] = {}
        self.failed: dict[str | Shape, float] = {}

    def take(self, batch: Sequence[tuple[Launch, Cell]]) -> bool:
        """Take all cells of a batch, or none and return False."""
        key, more = self._key(*batch[0])
        if len(batch) == 1 and more >= self.failed.get(key, self.budget_s + 1e-6):
            return False
        before = {launch.id: launch.measure_s for launch, _ in batch}
        for launch, cell in batch:
            launch.measure_s += self.seconds[cell.fingerprint]
        tried = {**self.taken, **{launch.id: launch for launch, _ in batch}}
        if makespan(list(tried.values()), self.machine) <= self.budget_s:
            self.taken = tried
            return True
        for launch, _ in batch:
            launch.measure_s = before[launch.id]
        if len(batch) == 1:
            self.failed[key] = more
        return False

    def _key(self, launch: Launch, cell: Cell) -> tuple[str | Shape, float]:
        """Return what a cell competes for, and the seconds it adds there: a new launch must load first."""
        seconds = self.seconds[cell.fingerprint]
        return (launch.id, seconds) if launch.id in self.taken else (shape_of(launch), launch.load_s + seconds)
