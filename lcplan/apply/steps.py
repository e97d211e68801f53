"""The steps of one launch. Each does one thing, journals it, and raises StepFailed with a class when it can't."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lcplan.apply import gate as gates
from lcplan.apply import sealing
from lcplan.apply.events import Sink
from lcplan.apply.journal import Journal
from lcplan.apply.measure import Measuring, NoResult
from lcplan.apply.neighbours import Neighbours
from lcplan.apply.secrets import api_key
from lcplan.apply.servers import LogTail, Server, StepFailed, first_death, step_failures, until_ready
from lcplan.apply.starts import require_free, runtime_for, servers_of, until_released
from lcplan.apply.turn import Turn
from lcplan.engine.dialect import DIALECTS
from lcplan.plan import estimate
from lcplan.plan.bench import fill
from lcplan.plan.model import Cell, Launch, Operation, Plan
from lcplan.record import manifest
from lcplan.runtime import get as runtime_of
from lcplan.runtime.base import STARTING_GRACE_S, Runtime

if TYPE_CHECKING:
    from lcplan.engine.logs import LogFacts

_ALIVE_LIMIT_S = 60.0


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
    hash_weights: bool = False


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
        self.servers: list[Server] = []
        self.runtime: Runtime = runtime_of("sim" if settings.rehearsal else launch.runtime)
        self._measuring: Measuring | None = None

    @property
    def simulated(self) -> bool:
        """Whether this run is no measurement: a rehearsal, or a server that says of itself that it is a simulator."""
        return self.rehearsal or any(server.simulated for server in self.servers)

    @property
    def rehearsal(self) -> bool:
        """Whether the engine's argv goes to the simulator instead of the engine."""
        return self.runtime.name == "sim"

    @property
    def speed(self) -> float:
        """Virtual seconds per second of a simulated server."""
        told = (server.simulator_speed for server in self.servers)
        return next((speed for speed in told if speed), self.settings.speed)

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
        """Make sure of the images, and read what is only observed: model files and driver."""
        with step_failures():
            for one in self.launch.servers:
                image = await asyncio.to_thread(
                    runtime_for(one, self.rehearsal).resolve, one.image, self.interrupted.is_set
                )
                self.facts.setdefault("images", {})[one.role] = image
            shell = await asyncio.to_thread(self.runtime.shell)
        self.facts.update(await asyncio.to_thread(sealing.observe, self.launch, self.rehearsal, shell))
        if self.settings.hash_weights:
            await self._hash_weights()

    async def check_idle(self, _: Operation) -> None:
        """Refuse a port that is taken and GPUs that are busy."""
        await require_free(self.launch, self.rehearsal)

    async def launch_server(self, _: Operation) -> None:
        """Start the servers with the plan's argv, but a router, which comes when those behind it are ready."""
        if not self.rehearsal:
            await self.turn.take(self.interrupted)
            if not self.turn.taken:
                raise StepFailed("interrupted", "stopped before the server was started")
        header = sealing.script_header(self)
        self.servers = servers_of(self.launch, self.run, self.settings, self.rehearsal, self.folder, header)
        self.times["started"] = _now()
        for server in self.servers[:-1] or self.servers:
            await server.launch(self.journal)
        key = next(filter(None, (api_key(one.env) for one in self.launch.servers)), "")
        self._measuring = Measuring(self.run, str(self.folder / "client.log"), self.sink, key)
        await self._measuring.prepare()

    async def ready(self, _: Operation) -> None:
        """Wait for the engine's own readiness and one generated token, of every server."""
        *behind, front = self.servers
        limit_s = float(self.launch.ready_timeout_s)
        self._tail = LogTail(self.sink, self.launch.id, self.run)
        if behind:
            await until_ready(behind, limit_s, self.interrupted, self._looked)
            await front.launch(self.journal)
        await until_ready([front], limit_s, self.interrupted, self._looked)
        self.turn.give()
        self.times["ready"] = _now()

    async def handshake(self, _: Operation) -> None:
        """Prove that the servers on the ports are those that were started."""
        for server in self.servers:
            await server.require_ours()
        self.facts["identity"] = "proven" if all(server.named for server in self.servers) else "unproven"
        if self.facts["identity"] == "unproven":
            sentence = "the command has no {run_id}, so nothing but its process shows that the server is this run's"
            hint = "put {run_id} where the command takes the served name"
            self.sink({"event": "warning", "launch": self.launch.id, "run": self.run, "code": "identity-unproven",
                       "sentence": sentence, "hint": hint})  # fmt: skip
        self.facts["served_version"] = await self._engine.probe.version()
        if self.simulated and not self.rehearsal:
            self.sink({"event": "simulator", "launch": self.launch.id, "run": self.run})
        self.journal.write("learned", "end", run=self.run, predicate=sealing.learned(self))

    async def read_capacity(self, _: Operation) -> None:
        """Read the pool from the log and from /metrics; of a split layout that of its decode server."""
        from lcplan.engine import dialect

        said = self._engine.facts()
        metrics = dialect.capacity(await self._engine.probe.metrics(), self.launch.kind)
        self.capacity = gates.read(self.launch, said, metrics)
        for one in self.capacity.warnings:
            self.sink({"event": "warning", "launch": self.launch.id, "run": self.run, "code": one.code,
                       "sentence": one.message, "hint": one.hint})  # fmt: skip
        self._keep(said)

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
        for server in self.servers:
            server.require_alive()
        self.journal.write("measure", "begin", run=self.run, cell=cell.name)
        self.neighbours.watch(self.run)
        result = {**await self._measured(cell, operation), "neighbours": self.neighbours.seen(self.run)}
        self.results[cell.name] = result
        self.journal.write("measure", "end", run=self.run, result=result)
        self.sink({"event": "cell", "launch": self.launch.id, "run": self.run, "cell": cell.name,
                   "status": result["status"], "sentence": result.get("sentence"),
                   "metrics": result.get("metrics", {})})  # fmt: skip
        if result["status"] == "failed":
            await self._judge_failure()

    async def stop(self, _: Operation) -> None:
        """End the child and the servers, the last one first, whatever state they are in."""
        self.turn.give()
        if self._measuring is not None:
            await self._measuring.close()
        if not self.servers:
            return
        grace = 5.0 if self.simulated else float(self.launch.docker.get("stop_grace_s", self.settings.grace_s))
        if "ready" not in self.times:
            grace = min(grace, STARTING_GRACE_S)
        failed: StepFailed | None = None
        try:
            self.journal.write("stop", "begin", run=self.run)
        finally:
            # Also when nothing can be written any more: no server is left.
            for server in reversed(self.servers):
                try:
                    await server.stop(grace)
                except StepFailed as problem:
                    failed = problem
        if failed is not None:
            raise failed
        self.journal.write("stop", "end", run=self.run)
        self.times["stopped"] = _now()

    async def check_released(self, _: Operation) -> None:
        """Wait until the GPUs are free again."""
        if not self.rehearsal and self.servers and self.launch.placement is not None:
            await until_released(self.launch.placement.gpus, self.runtime)

    async def seal(self, _: Operation) -> None:
        """Write the manifest, move the run to its place and note it in the state."""
        async with self._serial:
            with self.journal.effect("seal", self.run):
                await asyncio.to_thread(sealing.seal, self)
        self.sealed = True
        self.neighbours.leave(self.run)
        self.sink({"event": "sealed", "launch": self.launch.id, "run": self.run})

    async def _hash_weights(self) -> None:
        from lcplan.apply import weights

        folder = Path(self.launch.model_path)
        try:
            self.facts["weights"] = await asyncio.to_thread(weights.shard_hashes, folder, self.interrupted.is_set)
        except weights.Cancelled as gone:
            raise StepFailed("interrupted", "stopped while the weights were hashed") from gone
        except OSError as problem:
            raise StepFailed("file-unreadable", f"{problem.filename}: {problem.strerror}",
                             "mend the file, or apply without --hash-weights") from problem  # fmt: skip

    def settle(self, failed: StepFailed | None) -> None:
        """Give every cell that has no result one: failed, interrupted or not run."""
        if failed is not None and failed.log is not None:
            self._keep(failed.log)
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

    @property
    def _engine(self) -> Server:
        """The server whose pool counts: of a split layout the last decode server."""
        return self.servers[-2] if len(self.servers) > 1 else self.servers[-1]

    def _looked(self) -> None:
        """Show what the logs say; let the next launch of the node start once the servers have measured their memory."""
        self._tail.tell(self.servers)
        if self.turn.taken and all(one.facts().kv_tokens for one in self.servers[:-1] or self.servers):
            self.turn.give()

    def _keep(self, log: LogFacts) -> None:
        self.facts["log"], self.facts["choices"] = log.as_json(), dict(log.choices)

    def _cells(self) -> list[Cell]:
        return [c for c in self.launch.cells if c.fingerprint in self.todo]

    def _result(self, cell: Cell, status: str, reason: str, sentence: str) -> None:
        self.results[cell.name] = {
            "event": "result", "cell": cell.name, "fingerprint": cell.fingerprint, "status": status, "reason": reason,
            "sentence": sentence, "metrics": {}, "rows": [],
        }  # fmt: skip

    async def _measured(self, cell: Cell, operation: Operation) -> dict[str, Any]:
        assert self._measuring is not None
        expected = estimate.cell_seconds(cell.kind, cell.definition, self.launch.engines)
        deadline = 120 + expected if self.simulated else max(1800.0, 20 * expected)
        request = {"cell": cell.name, "fingerprint": cell.fingerprint, "workload": dict(cell.definition),
                   "repeat": cell.repeat, "attempt": 1}  # fmt: skip
        if "bench" in operation.detail:
            user = f"{os.getuid()}:{os.getgid()}"
            request["bench"] = fill(operation.detail["bench"], str(self.folder.resolve()), user)
        try:
            return await self._measuring.cell(self._job(), request, deadline, self.interrupted.wait(),
                                              first_death(self.servers))  # fmt: skip
        except NoResult as none:
            self._result(cell, none.status, none.reason, none.sentence)
            return self.results[cell.name]

    def _job(self) -> dict[str, Any]:
        assert self.capacity is not None
        *behind, front = self.servers
        return {
            "base_url": front.url, "engine_url": self._engine.url, "engine": self.launch.kind,
            "engine_version": self.facts.get("served_version") or self.launch.version, "served": front.served,
            "context": self.launch.context, "simulated": self.simulated, "speed": self.speed,
            "lineage": self.settings.lineage, "run": self.run, "attempt": 1, "folder": str(self.folder.resolve()),
            "engines": self.capacity.engines, "tokenizer": self.launch.model_path,
            "metrics_url": [server.url + DIALECTS[self.launch.kind].metrics for server in behind],
        }  # fmt: skip

    async def _judge_failure(self) -> None:
        """After a failed cell: go on only when the servers still generate."""
        for server in self.servers:
            server.require_alive()
        await self.servers[-1].generates(_ALIVE_LIMIT_S)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
