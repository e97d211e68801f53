"""The steps of one launch. Each does one thing, journals it, and raises StepFailed with a class when it can't."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lcplan.apply import gate as gates
from lcplan.apply import gpus, sealing
from lcplan.apply.events import Sink
from lcplan.apply.journal import Journal
from lcplan.apply.measure import Child, ChildDied
from lcplan.apply.neighbours import Neighbours
from lcplan.apply.probe import Probe
from lcplan.apply.turn import Turn
from lcplan.base.canonical import digest
from lcplan.base.diagnostics import LcplanError
from lcplan.engine.base import RUN_ID
from lcplan.plan import estimate
from lcplan.plan.model import Cell, Launch, Operation, Plan
from lcplan.record import manifest
from lcplan.runtime import get as runtime_of
from lcplan.runtime.base import Container, Handle, Runtime, Start

if TYPE_CHECKING:
    from lcplan.engine.logs import LogReader

_FIRST_POLL_S, _LAST_POLL_S = 0.03, 1.0
_QUIET_LIMIT_S = 900.0
"""Seconds without a new log line after which a start counts as hung (good starts were silent for up to 65 s)."""
_RELEASE_LIMIT_S = 120.0
SIMULATOR_NOTICE = b"lcplan simulator: every number of this server is simulated"
"""What the simulator writes at the top of its log, whatever started it."""


@dataclass(frozen=True)
class Settings:
    """What an apply is told beside the plan."""

    root: Path
    lineage: str
    plan_id: str
    plan_file: str
    rehearsal: bool
    speed: float
    recipes: Mapping[str, bytes]
    blobs: Mapping[str, str]
    grace_s: float = 60.0


class StepFailed(Exception):
    """A step that can't be done: a class of failure, a sentence and a hint."""

    def __init__(self, reason: str, sentence: str, hint: str = "") -> None:
        super().__init__(sentence)
        self.reason, self.sentence, self.hint = reason, sentence, hint


class LaunchRun:
    """One run: a launch being executed. `results` holds one entry per cell that was to be measured."""

    def __init__(
        self, plan: Plan, launch: Launch, todo: set[str], settings: Settings, journal: Journal, sink: Sink,
        serial: asyncio.Lock,
    ) -> None:  # fmt: skip
        self.plan, self.launch, self.todo = plan, launch, todo
        self.settings, self.journal, self.sink = settings, journal, sink
        self.interrupted = asyncio.Event()
        self.neighbours = Neighbours()
        self.turn = Turn(asyncio.Lock())
        self.results: dict[str, dict[str, Any]] = {}
        self.run = ""
        self.sealed = False
        self.times: dict[str, str] = {}
        self.facts: dict[str, Any] = {}
        self.capacity: gates.Capacity | None = None
        self._serial = serial
        self._runtime: Runtime = runtime_of("sim" if settings.rehearsal else launch.runtime)
        self._handle: Handle | None = None
        self._start: Start | None = None
        self._log: LogReader | None = None
        self._log_at = 0
        self._simulator_log = False
        self._probe: Probe | None = None
        self._child: Child | None = None

    @property
    def simulated(self) -> bool:
        """Whether this run is no measurement: a rehearsal, or a server that says of itself that it is a simulator."""
        told = self._probe is not None and self._probe.simulator_speed is not None
        return self.rehearsal or told or self._simulator_log

    @property
    def rehearsal(self) -> bool:
        """Whether the engine's argv goes to the simulator instead of the engine."""
        return self._runtime.name == "sim"

    @property
    def speed(self) -> float:
        """Virtual seconds per second of a simulated server."""
        told = self._probe.simulator_speed if self._probe is not None else None
        return told or self.settings.speed

    @property
    def folder(self) -> Path:
        """The run's staging folder."""
        return self.settings.root / "staging" / self.run

    async def begin(self) -> None:
        """Take a run id and note the run in the journal."""
        launch, placement, root = self.launch, self.launch.placement, self.settings.root
        now = datetime.now(UTC)
        self.run = manifest.run_id(
            launch.stack, launch.layout, placement.quad if placement else None, launch.context or 0, launch.kind,
            launch.variant, now, lambda run: manifest.taken(root, run),
        )  # fmt: skip
        self.times["begun"] = now.isoformat(timespec="milliseconds")
        self.journal.write("run", "begin", run=self.run, launch=launch.id, context=sealing.context(self))
        self.folder.mkdir(parents=True)
        self.neighbours.arrive(self.run)

    async def resolve(self, _: Operation) -> None:
        """Make sure of the image, and read what is only observed: model files and driver."""
        with _step_failures():
            self.facts["image"] = await asyncio.to_thread(
                self._runtime.resolve, self.launch.image, self.interrupted.is_set
            )
            shell = await asyncio.to_thread(self._runtime.shell)
        self.facts.update(await asyncio.to_thread(sealing.observe, self.launch, self.rehearsal, shell))

    async def check_idle(self, _: Operation) -> None:
        """Refuse a port that is taken and GPUs that are busy."""
        assert self.launch.placement is not None
        placement = self.launch.placement
        port = placement.port
        owner = await asyncio.to_thread(gpus.port_owner, port, self._runtime.address())
        if owner is not None:
            raise StepFailed("port_in_use", f"port {port} is taken by {owner}", "stop it, or give the quad other ports")
        if not self.rehearsal:
            busy = await asyncio.to_thread(gpus.busy, placement.gpus, self._runtime.shell())
            if busy:
                raise StepFailed("gpus_busy", f"GPUs are in use: {'; '.join(busy)}",
                                 "end those processes, or wait; lcplan never ends what it does not own")  # fmt: skip

    async def launch_server(self, operation: Operation) -> None:
        """Start the server with the plan's argv, its hole filled with the run id."""
        assert self.launch.placement is not None
        placement = self.launch.placement
        env = {k: v for k, v in operation.detail["env"].items() if isinstance(v, str)}
        secrets = {k: v["from_env"] for k, v in operation.detail["env"].items() if isinstance(v, dict)}
        argv = [self.run if word == RUN_ID else word for word in operation.detail["argv"]]
        self._start = Start(
            self.run, self.settings.lineage, argv, env, self.folder, secrets,
            placement.uuids or tuple(str(g) for g in placement.gpus), placement.cpus, placement.port,
            self.settings.speed, sealing.script_header(self), self._container(placement.numa),
            f"{platform.node()}:{self.settings.root.resolve()}",
        )  # fmt: skip
        if not self.rehearsal:
            await self.turn.take(self.interrupted)
            if not self.turn.taken:
                raise StepFailed("interrupted", "stopped before the server was started")
        if self.rehearsal:
            (self.folder / "cmd.sh").write_text(self._runtime.script(self._start))
        self.times["started"] = _now()
        with self.journal.effect("launch", self.run, argv_sha256=digest(operation.detail["argv"])) as outcome:
            with _step_failures():
                self._handle = await asyncio.to_thread(self._runtime.start, self._start)
            outcome["handle"] = self._handle
        # The measuring child imports its libraries while the server starts.
        self._child = await Child.start(self.run, str(self.folder / "client.log"), self.sink)

    async def ready(self, _: Operation) -> None:
        """Wait for the engine's own readiness and one generated token."""
        assert self.launch.placement is not None and self._start is not None
        from lcplan.engine.logs import LogReader

        self._log = LogReader(self.launch.kind)
        self._probe = Probe.open(self.launch.kind, self._base_url())
        limit, poll = time.monotonic() + self.launch.ready_timeout_s, _FIRST_POLL_S
        moved = time.monotonic()
        while True:
            if self.interrupted.is_set():
                raise StepFailed("interrupted", "stopped while the server was starting")
            if self._read_log():
                moved = time.monotonic()
                if self.turn.taken and self._log.facts().kv_tokens:
                    self.turn.give()
            self._require_alive()
            said = await self._probe.ready()
            if said == "dead":
                raise self._crash("the engine reports that it is dead")
            if said == "ready":
                self.turn.give()
                break
            if time.monotonic() > limit:
                raise self._crash(f"not ready after {self.launch.ready_timeout_s} s", "never_ready")
            if time.monotonic() - moved > _QUIET_LIMIT_S:
                raise self._crash(f"nothing new in the log for {_QUIET_LIMIT_S:.0f} s", "hang")
            await asyncio.sleep(poll)
            poll = min(poll * 1.5, _LAST_POLL_S)
        if not await self._within(self._probe.token(self.run), max(30.0, limit - time.monotonic())):
            self._read_log()
            raise self._crash("health is fine, but no token was generated", "engine_stuck")
        self.times["ready"] = _now()

    async def handshake(self, _: Operation) -> None:
        """Prove that the server on the port is the one that was started."""
        assert self._probe is not None
        names = await self._probe.served()
        if self.run not in names:
            raise StepFailed("foreign_server", f"the server on the port serves {names or 'nothing'}, not {self.run}",
                             "another server holds the port; stop it")  # fmt: skip
        self.facts["served_version"] = await self._probe.version()
        if self.simulated and not self.rehearsal:
            self.sink({"event": "simulator", "launch": self.launch.id, "run": self.run})
        self.journal.write("learned", "end", run=self.run, predicate=sealing.learned(self))

    async def read_capacity(self, _: Operation) -> None:
        """Read the pool from the log and from /metrics."""
        assert self._probe is not None and self._log is not None
        from lcplan.engine import dialect

        self._read_log()
        said = self._log.facts()
        metrics = dialect.capacity(await self._probe.metrics(), self.launch.kind)
        self.capacity = gates.read(self.launch, said, metrics)
        for one in self.capacity.warnings:
            self.sink({"event": "warning", "launch": self.launch.id, "run": self.run, "code": one.code,
                       "sentence": one.message, "hint": one.hint})  # fmt: skip
        self.facts["log"] = said.as_json()
        self.facts["choices"] = dict(said.choices)

    async def gate(self, _: Operation) -> None:
        """Block the cells that the engine can't hold; mark those that it can hold only in part."""
        assert self.capacity is not None
        small = gates.too_small(self.capacity)
        if small:
            raise StepFailed("kv_too_small", small, "lower the context or the other memory, or use more GPUs")
        for cell in self._cells():
            found = gates.fits(cell, self.capacity)
            reason, limited = gates.verdict(cell, found, self.capacity)
            self.facts.setdefault("fits", {})[cell.name] = gates.mark(found, limited)
            if reason is not None:
                self._result(cell, "blocked", "capacity", reason)
        self.journal.write("learned", "end", run=self.run, predicate=sealing.learned(self))

    async def measure(self, operation: Operation) -> None:
        """Measure one cell in the measuring child."""
        cell = next(c for c in self._cells() if c.fingerprint == operation.detail["fingerprint"])
        if cell.name in self.results:
            return
        if self.interrupted.is_set():
            return
        self._require_alive()
        self.journal.write("measure", "begin", run=self.run, cell=cell.name)
        self.neighbours.watch(self.run)
        result = {**await self._measured(cell), "neighbours": self.neighbours.seen(self.run)}
        self.results[cell.name] = result
        self.journal.write("measure", "end", run=self.run, result=result)
        self.sink({"event": "cell", "launch": self.launch.id, "run": self.run, "cell": cell.name,
                   "status": result["status"], "sentence": result.get("sentence"),
                   "metrics": result.get("metrics", {})})  # fmt: skip
        if result["status"] == "failed":
            await self._judge_failure()

    async def stop(self, _: Operation) -> None:
        """End the child and the server, whatever state they are in."""
        self.turn.give()
        if self._child is not None:
            await self._child.close()
        if self._probe is not None:
            await self._probe.close()
        if self._handle is None:
            return
        grace = 5.0 if self.simulated else float(self.launch.docker.get("stop_grace_s", self.settings.grace_s))
        with _step_failures(), self.journal.effect("stop", self.run):
            await asyncio.to_thread(self._runtime.stop, self._handle, grace)
        self._read_log()
        self.times["stopped"] = _now()

    async def check_released(self, _: Operation) -> None:
        """Wait until the GPUs are free again; a server that is gone may still hold memory for a while."""
        if self.rehearsal or self._handle is None or self.launch.placement is None:
            return
        end = time.monotonic() + _RELEASE_LIMIT_S
        while busy := await asyncio.to_thread(gpus.busy, self.launch.placement.gpus, self._runtime.shell()):
            if time.monotonic() > end:
                raise StepFailed("gpus_not_released", f"GPUs are still in use: {'; '.join(busy)}")
            await asyncio.sleep(_LAST_POLL_S)

    async def seal(self, _: Operation) -> None:
        """Write the manifest, move the run to its place and note it in the state."""
        async with self._serial:
            with self.journal.effect("seal", self.run):
                await asyncio.to_thread(sealing.seal, self)
        self.sealed = True
        self.neighbours.leave(self.run)
        self.sink({"event": "sealed", "launch": self.launch.id, "run": self.run})

    def settle(self, failed: StepFailed | None) -> None:
        """Give every cell that has no result one: failed, interrupted or not run."""
        first = True
        for cell in self._cells():
            if cell.name in self.results:
                continue
            if failed is None:
                self._result(cell, "not_run", "stopped", "the apply was stopped before this cell")
            elif failed.reason == "interrupted":
                self._result(cell, "not_run", "interrupted", failed.sentence)
            elif not any(r["status"] == "failed" for r in self.results.values()) or not first:
                self._result(cell, "failed" if first else "not_run", failed.reason, failed.sentence)
                first = False
            else:
                self._result(cell, "not_run", failed.reason, failed.sentence)

    def _container(self, numa: tuple[int, ...]) -> Container | None:
        launch = self.launch
        if launch.runtime != "docker" or launch.image is None:
            return None
        return Container(launch.image, launch.docker, numa, launch.digest)

    def _base_url(self) -> str:
        assert self.launch.placement is not None
        return f"http://{self._runtime.address()}:{self.launch.placement.port}"

    def _cells(self) -> list[Cell]:
        return [c for c in self.launch.cells if c.fingerprint in self.todo]

    def _result(self, cell: Cell, status: str, reason: str, sentence: str) -> None:
        self.results[cell.name] = {
            "event": "result", "cell": cell.name, "fingerprint": cell.fingerprint, "status": status, "reason": reason,
            "sentence": sentence, "metrics": {}, "rows": [],
        }  # fmt: skip

    async def _measured(self, cell: Cell) -> dict[str, Any]:
        expected = estimate.cell_seconds(cell.kind, cell.definition, self.launch.engines)
        deadline = 120 + expected if self.simulated else max(1800.0, 20 * expected)
        request = {"cell": cell.name, "fingerprint": cell.fingerprint, "workload": dict(cell.definition),
                   "repeat": cell.repeat, "attempt": 1}  # fmt: skip
        try:
            if self._child is None:
                self._child = await Child.start(self.run, str(self.folder / "client.log"), self.sink)
            await self._child.take(self._job())
            work = asyncio.ensure_future(self._child.measure(request, deadline))
            stop = asyncio.ensure_future(self.interrupted.wait())
            dead = asyncio.ensure_future(self._server_death())
            finished, _ = await asyncio.wait({work, stop, dead}, return_when=asyncio.FIRST_COMPLETED)
            if work not in finished and dead in finished:
                # The client may just be writing down what it saw of the crash.
                await asyncio.wait({work}, timeout=10.0)
            for other in (stop, dead):
                other.cancel()
            if work.done():
                return work.result()
            work.cancel()
            with contextlib.suppress(BaseException):
                await work
            await self._child.close()
            self._child = None
            died = dead in finished
            if died:
                self._result(cell, "failed", "server_died", "the server died while the cell was measured")
            else:
                self._result(cell, "interrupted", "interrupted", "the apply was stopped while the cell was measured")
        except (ChildDied, TimeoutError) as problem:
            if self._child is not None:
                await self._child.close()
            self._child = None
            late = isinstance(problem, TimeoutError)
            self._result(cell, "failed", "deadline" if late else "client_died",
                         f"no result within {deadline:.0f} s" if late else str(problem))  # fmt: skip
        return self.results[cell.name]

    def _job(self) -> dict[str, Any]:
        assert self.launch.placement is not None and self.capacity is not None
        return {
            "base_url": self._base_url(), "engine": self.launch.kind,
            "engine_version": self.facts.get("served_version") or self.launch.version, "served": self.run,
            "context": self.launch.context, "simulated": self.simulated, "speed": self.speed,
            "lineage": self.settings.lineage, "run": self.run, "attempt": 1, "folder": str(self.folder.resolve()),
            "engines": self.capacity.engines, "bench": _bench(self.launch.cells),
        }  # fmt: skip

    async def _server_death(self) -> None:
        assert self._handle is not None
        while await asyncio.to_thread(self._runtime.exited, self._handle) is None:
            await asyncio.sleep(0.2)

    async def _judge_failure(self) -> None:
        """After a failed cell: go on only when the server still generates."""
        assert self._probe is not None
        self._read_log()
        self._require_alive()
        if not await self._within(self._probe.token(self.run), 60.0):
            self._require_alive()
            raise self._crash("the server stopped answering", "engine_stuck")

    async def _within(self, question: Any, limit_s: float) -> bool:
        try:
            return bool(await asyncio.wait_for(question, limit_s))
        except TimeoutError:
            return False

    def _read_log(self) -> bool:
        """Read what the log has grown by; return whether it did."""
        if self._log is None or self._start is None:
            return False
        try:
            with self._start.log.open("rb") as file:
                file.seek(self._log_at)
                grown = False
                while block := file.read(1 << 20):
                    self._log.feed(block)
                    self._simulator_log |= SIMULATOR_NOTICE in block
                    self._log_at += len(block)
                    grown = True
                return grown
        except FileNotFoundError:
            return False

    def _require_alive(self) -> None:
        assert self._handle is not None
        status = self._runtime.exited(self._handle)
        if status is not None:
            self._read_log()
            shown = "" if status == -1 else f" with status {status}"
            raise self._crash(f"the server ended{shown}", exit_code=status)

    def _crash(self, sentence: str, reason: str = "", exit_code: int | None = None) -> StepFailed:
        """Return the failure with the class and the last error of the log."""
        from lcplan.engine.logs import classify_exit

        hint = ""
        if self._log is not None:
            facts = self._log.facts()
            self.facts["log"], self.facts["choices"] = facts.as_json(), dict(facts.choices)
            found = classify_exit(facts, exit_code)
            if found is not None and (facts.failure or not reason):
                reason, hint = found.kind, found.hint
                sentence = f"{sentence}: {found.sentence}"
            if facts.last_error and facts.last_error not in sentence:
                sentence += f" ({facts.last_error.strip()[:300]})"
        return StepFailed(reason or "server_died", sentence, hint)


def _bench(cells: Sequence[Cell]) -> list[str]:
    """Return the benchmark's command: what a sweep of the launch declares, else the one on the PATH."""
    said = next((c.definition["bench"] for c in cells if c.definition.get("bench")), ["vllm", "bench", "serve"])
    return shlex.split(said) if isinstance(said, str) else list(said)


@contextlib.contextmanager
def _step_failures() -> Iterator[None]:
    """Turn what a runtime raises into the failure of a step."""
    try:
        yield
    except LcplanError as problem:
        first = problem.diagnostics[0]
        raise StepFailed(first.code, first.message, first.hint) from problem


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def shown_command(argv: list[str]) -> str:
    """Return a command as a person would type it."""
    return shlex.join(argv)
