"""Walks the operations of a plan: one task per launch, each waiting for the launches before it on its quads.

It decides nothing: which steps there are, in which order, with which argv and after what, stands in the plan. A step
that fails ends its launch (servers are still stopped, what was measured is sealed); other quads go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from lcplan.apply.events import VERSION, Sink
from lcplan.apply.journal import Journal
from lcplan.apply.neighbours import Neighbours
from lcplan.apply.servers import StepFailed
from lcplan.apply.steps import LaunchRun, Settings
from lcplan.apply.turn import Turn
from lcplan.plan.model import Launch, Operation, Plan

_ALWAYS = ("stop", "check_released", "seal")
"""Steps that are done for every launch that was begun, whatever failed before."""


@dataclass
class Outcome:
    """What an apply did: cells by fate, sealed runs, launches that failed with their sentence."""

    done: int = 0
    invalid: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    blocked: list[str] = field(default_factory=list)
    interrupted: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    skipped: int = 0
    runs: list[str] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether every cell that was to be measured was measured and is valid."""
        return not (self.invalid or self.failed or self.interrupted or self.not_run)

    def as_json(self) -> dict[str, Any]:
        """Return the shape of the summary event."""
        return {
            "done": self.done,
            "skipped": self.skipped,
            "invalid": self.invalid,
            "failed": self.failed,
            "blocked": self.blocked,
            "interrupted": self.interrupted,
            "not_run": self.not_run,
            "runs": self.runs,
            "sentences": self.sentences,
        }


class Executor:
    """One apply of one plan."""

    def __init__(self, plan: Plan, settings: Settings, journal: Journal, sink: Sink, done: set[str]) -> None:
        self.plan = plan
        self.settings = settings
        self.journal = journal
        self.sink = sink
        self.done = done
        self.outcome = Outcome()
        self.stopping = asyncio.Event()
        self.now = asyncio.Event()
        self._serial = asyncio.Lock()
        self._neighbours: dict[str, Neighbours] = {}
        self._starting: dict[str, asyncio.Lock] = {}

    async def run(self) -> Outcome:
        """Apply the plan and return what became of it."""
        steps: dict[str, list[Operation]] = {}
        for operation in self.plan.operations:
            steps.setdefault(operation.launch, []).append(operation)
        launches = {one.id: one for one in self.plan.launches if one.id in steps}
        ended = {name: asyncio.Event() for name in launches}
        self.sink({"event": "start", "version": VERSION, "launches": [_row(one) for one in launches.values()]})

        async def task(name: str) -> None:
            try:
                for other in launches[name].after:
                    if other in ended:
                        await ended[other].wait()
                await self._launch(launches[name], steps[name])
            finally:
                ended[name].set()

        async with asyncio.TaskGroup() as group:
            for name in launches:
                group.create_task(task(name))
        self.sink({"event": "end", **self.outcome.as_json()})
        return self.outcome

    def interrupt(self) -> None:
        """First call: finish the running cells, then stop; second call: stop now, still clean."""
        (self.now if self.stopping.is_set() else self.stopping).set()
        self.sink({"event": "stopping", "now": self.now.is_set()})

    def terminate(self) -> None:
        """Stop now, still clean."""
        self.stopping.set()
        self.now.set()
        self.sink({"event": "stopping", "now": True})

    async def _launch(self, launch: Launch, steps: list[Operation]) -> None:
        cells = [o for o in steps if o.op == "measure"]
        todo = {str(o.detail["fingerprint"]) for o in cells} - self.done
        self.outcome.skipped += len(cells) - len(todo)
        if not todo:
            return
        if self.stopping.is_set():
            self.outcome.not_run += [f"{launch.id}/{c.name}" for c in launch.cells if c.fingerprint in todo]
            return
        run = LaunchRun(self.plan, launch, todo, self.settings, self.journal, self.sink, self._serial)
        run.interrupted = self.now
        node = launch.placement.node if launch.placement else ""
        run.neighbours = self._neighbours.setdefault(node, Neighbours())
        run.turn = Turn(self._starting.setdefault(node, asyncio.Lock()))
        handlers: dict[str, Callable[[Operation], Awaitable[None]]] = {
            "resolve": run.resolve,
            "check_idle": run.check_idle,
            "launch": run.launch_server,
            "ready": run.ready,
            "handshake": run.handshake,
            "read_capacity": run.read_capacity,
            "gate": run.gate,
            "measure": run.measure,
            "stop": run.stop,
            "check_released": run.check_released,
            "seal": run.seal,
        }
        failed: StepFailed | None = None
        await run.begin()
        for step in steps:
            if step.op not in _ALWAYS and failed is not None:
                continue
            if step.op == "measure" and (step.detail["fingerprint"] not in todo or self.stopping.is_set()):
                continue
            if step.op == "stop":
                run.settle(failed)
            self.sink({"event": "step", "launch": launch.id, "run": run.run, "op": step.op,
                       "cell": step.detail.get("cell")})  # fmt: skip
            try:
                await handlers[step.op](step)
            except StepFailed as problem:
                if step.op in _ALWAYS:
                    self.outcome.sentences.append(f"{launch.id}: {problem.sentence}")
                    continue
                failed = problem
                self.sink({"event": "failed", "launch": launch.id, "run": run.run, "op": step.op,
                           "class": problem.reason, "sentence": problem.sentence, "hint": problem.hint})  # fmt: skip
        self._count(run, failed)

    def _count(self, run: LaunchRun, failed: StepFailed | None) -> None:
        buckets = {
            "invalid": self.outcome.invalid,
            "failed": self.outcome.failed,
            "blocked": self.outcome.blocked,
            "interrupted": self.outcome.interrupted,
            "not_run": self.outcome.not_run,
        }
        for result in run.results.values():
            if result["status"] == "done":
                self.outcome.done += 1
            else:
                reason = result.get("sentence") or result.get("reason") or ""
                buckets[result["status"]].append(f"{run.run}/{result['cell']}: {reason}".rstrip(": "))
        if run.sealed:
            self.outcome.runs.append(run.run)
        if run.simulated and not run.rehearsal:
            said = "lcplan's simulator answered; recorded as simulated, which is no measurement"
            self.outcome.sentences.append(f"{run.run}: {said}")
        if failed is not None:
            self.outcome.sentences.append(f"{run.launch.id}: {failed.sentence}")


def _row(launch: Launch) -> dict[str, Any]:
    return {
        "launch": launch.id,
        "cells": sum(cell.action in ("+", "~") for cell in launch.cells),
        "seconds": launch.seconds,
        "quads": list(launch.placement.quads) if launch.placement else [],
    }
