"""Walks the operations of a plan: a task for each launch and serve entry, which waits for what its steps come after.

It decides nothing: which steps there are, in which order, with which argv and after what, stands in the plan. A step
that fails ends its launch (servers are still stopped, what was measured is sealed); other quads go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lcplan.apply.events import VERSION, Sink
from lcplan.apply.journal import Journal
from lcplan.apply.neighbours import Neighbours
from lcplan.apply.serve import ServeRun
from lcplan.apply.servers import StepFailed
from lcplan.apply.steps import LaunchRun, Settings
from lcplan.apply.turn import Turn
from lcplan.plan.model import Launch, Operation, Plan, Serve
from lcplan.plan.serve import SERVE_STEPS

_ALWAYS = ("stop", "check_released", "seal")
"""Steps that are done for every launch that was begun, whatever failed before."""


@dataclass
class Outcome:
    """What an apply did: cells by fate, sealed runs, launches that failed with their sentence.

    `trouble` says why the state directory could not be written.
    """

    done: int = 0
    invalid: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    blocked: list[str] = field(default_factory=list)
    interrupted: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    skipped: int = 0
    runs: list[str] = field(default_factory=list)
    serves: list[str] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    trouble: str = ""

    @property
    def good(self) -> bool:
        """Whether every cell that was to be measured was measured and is valid."""
        return not (self.invalid or self.failed or self.interrupted or self.not_run or self.trouble)

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
            "serves": self.serves,
            "sentences": self.sentences,
        }


class Executor:
    """One apply of one plan. `served` are the entries that run when it begins, with the node of each."""

    def __init__(
        self, plan: Plan, settings: Settings, journal: Journal, sink: Sink, done: set[str], served: Mapping[str, str]
    ) -> None:
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
        for name, node in served.items():
            self._neighbours.setdefault(node, Neighbours()).arrive(f"serve/{name}")

    async def run(self) -> Outcome:
        """Apply the plan and return what became of it."""
        groups = _groups(self.plan.operations)
        where = {step.id: name for name, steps in groups.items() for step in steps}
        launches = {one.id: one for one in self.plan.launches if one.id in groups}
        entries = {f"serve/{one.name}": self._entry(one) for one in self.plan.serves}
        ended = {name: asyncio.Event() for name in groups}
        self.sink({"event": "start", "version": VERSION, "launches": [_row(one) for one in launches.values()],
                   "serves": [name for name, run in entries.items() if f"{name}/start" in groups]})  # fmt: skip

        async def task(name: str, steps: list[Operation]) -> None:
            try:
                for other in {where[before] for step in steps for before in step.after if before in where} - {name}:
                    await ended[other].wait()
                if name in launches:
                    await self._launch(launches[name], steps)
                else:
                    await self._serve(entries[steps[0].launch], steps)
            finally:
                ended[name].set()

        async with asyncio.TaskGroup() as group:
            for name, steps in groups.items():
                group.create_task(task(name, steps))
        for run in entries.values():
            if run.passing and run.servers:
                await self._try(run, "serve_stop", run.end())
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
        todo = self._todo(launch)
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
        try:
            await run.begin()
        except OSError as problem:
            self._broken(problem)
            self.outcome.not_run += [f"{launch.id}/{c.name}" for c in launch.cells if c.fingerprint in todo]
            return
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
                try:
                    await handlers[step.op](step)
                except OSError as trouble:
                    raise self._broken(trouble) from trouble
            except StepFailed as problem:
                if step.op in _ALWAYS:
                    self.outcome.sentences.append(f"{launch.id}: {problem.sentence}")
                    continue
                failed = problem
                self.sink({"event": "failed", "launch": launch.id, "run": run.run, "op": step.op,
                           "class": problem.reason, "sentence": problem.sentence, "hint": problem.hint})  # fmt: skip
        self._count(run, failed)

    async def _serve(self, run: ServeRun, steps: list[Operation]) -> None:
        """Stop an entry, or start it and see that it is ready."""
        node = self._neighbours.setdefault(run.node, Neighbours())
        for step in steps:
            comes_back = step.op != "serve_stop" and run.away and not self.now.is_set()
            if self.stopping.is_set() and not comes_back:
                self.outcome.not_run.append(f"serve entry {run.name}: the apply was stopped before {step.op}")
                return
            if step.op == "serve_stop":
                wanted = any(self._todo(launch) for launch in self.plan.launches if launch.id in run.entry.preempted_by)
                done = await self._try(run, step.op, run.stop(step, wanted))
                node.leave(f"serve/{run.name}")
            else:
                done = await self._try(run, step.op, run.start(step) if step.op == "serve_start" else run.ready(step))
                node.arrive(f"serve/{run.name}")
            if not done:
                node.leave(f"serve/{run.name}")
                return
        if run.entry.action == "-" or run.servers:
            self.outcome.serves.append(f"{run.name}: {'stopped' if run.entry.action == '-' else 'served'}")

    async def _try(self, run: ServeRun, op: str, work: Coroutine[Any, Any, None]) -> bool:
        try:
            try:
                await work
            except OSError as trouble:
                raise self._broken(trouble) from trouble
        except StepFailed as problem:
            self.outcome.failed.append(f"serve entry {run.name}: {problem.sentence}")
            self.sink({"event": "failed", "launch": f"serve/{run.name}", "run": run.run, "op": op,
                       "class": problem.reason, "sentence": problem.sentence, "hint": problem.hint})  # fmt: skip
            return False
        return True

    def _broken(self, problem: OSError) -> StepFailed:
        """Stop everything, since nothing can be recorded any more; return that as the failure of a step.

        The journal is kept: the next apply goes on from what it could still hold.
        """
        place = f"{problem.filename}: " if problem.filename else ""
        self.outcome.trouble = f"{place}{problem.strerror or problem}"
        self.terminate()
        return StepFailed("io", f"nothing can be written: {self.outcome.trouble}",
                          "make room, then apply the same plan again")  # fmt: skip

    def _entry(self, one: Serve) -> ServeRun:
        passing = self.settings.rehearsal and self.plan.runtime != "sim"
        turn = Turn(self._starting.setdefault(str((one.held or one.place)["node"]), asyncio.Lock()))
        return ServeRun(one, self.settings, passing, self.journal, self.sink, self._serial, turn, self.now)

    def _todo(self, launch: Launch) -> set[str]:
        """Return the fingerprints of a launch that are to be measured and are not recorded yet."""
        return {cell.fingerprint for cell in launch.cells if cell.action in ("+", "~")} - self.done

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


def _groups(operations: Sequence[Operation]) -> dict[str, list[Operation]]:
    """Return the steps of each task: those of a launch, those that stop an entry, those that start one."""
    made: dict[str, list[Operation]] = {}
    for one in operations:
        name = one.launch
        if one.op in SERVE_STEPS:
            name += "/stop" if one.op == "serve_stop" else "/start"
        made.setdefault(name, []).append(one)
    return made


def _row(launch: Launch) -> dict[str, Any]:
    return {
        "launch": launch.id,
        "cells": sum(cell.action in ("+", "~") for cell in launch.cells),
        "seconds": launch.seconds,
        "quads": list(launch.placement.quads) if launch.placement else [],
    }
