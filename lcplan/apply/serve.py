"""Servers that stay up: started and proven, noted in the state, ended when their entry goes.

The state tells of a server from the moment it is ready until it is gone; what a killed apply left between is found by
its label and ended like any other orphan.
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lcplan import __version__
from lcplan.apply import sealing
from lcplan.apply.events import Sink
from lcplan.apply.journal import Journal
from lcplan.apply.secrets import mask_logs, secret_values
from lcplan.apply.serve_drift import Unseen, keep_inspection, require_here, serve_folder
from lcplan.apply.servers import LogTail, Server, StepFailed, step_failures, until_ready
from lcplan.apply.starts import require_free, runtime_for, servers_of, until_released
from lcplan.apply.turn import Turn
from lcplan.base.diagnostics import fail
from lcplan.engine.dialect import DIALECTS
from lcplan.plan.model import Operation, Serve
from lcplan.plan.serve import place_of, spec_of
from lcplan.record import state as states
from lcplan.runtime import get as runtime_of

if TYPE_CHECKING:
    from lcplan.apply.steps import Settings

_GRACE_S = 60.0


class ServeRun:
    """One serve entry during an apply. `passing`: a rehearsal of a real plan, which leaves nothing running.

    `away` says that the entry was stopped for a launch: it is to come back even when the apply is asked to stop.
    """

    def __init__(
        self, entry: Serve, settings: Settings, passing: bool, journal: Journal, sink: Sink, serial: asyncio.Lock,
        turn: Turn, give_up: asyncio.Event,
    ) -> None:  # fmt: skip
        self.entry, self.name, self.launch = entry, entry.name, entry.launch
        self.settings, self.passing = settings, passing
        self.journal, self.sink, self.turn = journal, sink, turn
        self._serial, self._give_up = serial, give_up
        self.run = ""
        self.away = False
        self.servers: list[Server] = []
        self._learned: dict[str, Any] = {}

    @property
    def node(self) -> str:
        """The node that the entry is on."""
        return str((self.entry.held or self.entry.place)["node"])

    async def stop(self, operation: Operation, wanted: bool) -> None:
        """End the server that the plan names, if the state still tells of it. Raises StepFailed.

        `wanted`: launches that are still to be measured need its place, whatever server the entry has now.
        """
        known = self._known()
        named = known is not None and known["run"] == operation.detail["run"] and not operation.detail["makes_way"]
        if known is None or not (named or wanted):
            return
        if self.passing and not known["simulated"]:
            self._tell("left", known["run"], "a rehearsal leaves what is served for real alone")
            return
        await self._stop_known(known)
        self.away = wanted

    async def start(self, _: Operation) -> None:
        """Start the entry's servers, unless it is served already as planned. Raises StepFailed."""
        assert self.launch is not None and self.launch.placement is not None
        launch, settings = self.launch, self.settings
        known = self._known()
        if known is not None:
            if self.passing and not known["simulated"]:
                self._tell("left", known["run"], "it is served for real, which a rehearsal leaves alone")
                return
            if known["spec"] == spec_of(launch) and await asyncio.to_thread(runs, known):
                self._tell("kept", known["run"])
                return
            await self._stop_known(known)
        with step_failures():
            images = [await asyncio.to_thread(runtime_for(one, settings.rehearsal).resolve, one.image,
                                              self._give_up.is_set) for one in launch.servers]  # fmt: skip
        await require_free(launch, settings.rehearsal)
        if not settings.rehearsal:
            await self.turn.take(self._give_up)
        if self._give_up.is_set():
            raise StepFailed("interrupted", "stopped before the server was started")
        self.run = _label(self.name, known["run"] if known else "")
        folder = self._fresh_folder()
        header = [f"lcplan {__version__}: serve entry {self.name}", f"plan {settings.plan_id}, {launch.source}"]
        self.servers = servers_of(launch, self.run, settings, settings.rehearsal, folder, header, served=self.name,
                                  stays_up=True)  # fmt: skip
        self._learned = {
            "image": images[-1],
            "model_files": await asyncio.to_thread(sealing.model_files, Path(launch.model_path)),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self._tell("starting", self.run)
        self.journal.write("serve_start", "begin", run=self.run, serve=self.name)
        # A router comes when those behind it are ready.
        async with self._or_nothing():
            for server in self.servers[:-1] or self.servers:
                await server.launch(self.journal)

    async def ready(self, _: Operation) -> None:
        """Wait until the entry serves its name, then note it in the state. Raises StepFailed; nothing is left then."""
        if not self.servers:
            return
        assert self.launch is not None
        *behind, front = self.servers
        limit_s = self.launch.ready_timeout_s
        self._tail = LogTail(self.sink, f"serve/{self.name}", self.run)
        async with self._or_nothing():
            if behind:
                await until_ready(behind, limit_s, self._give_up, self._looked)
                await front.launch(self.journal)
            await until_ready([front], limit_s, self._give_up, self._looked)
            await front.require_ours()
            await self._mask()
            entry = await self._record()
            if not self.passing:
                await self._note(entry)
        self.turn.give()
        self.journal.write("serve_start", "end", run=self.run)
        self._tell("ready", self.run)

    async def end(self) -> None:
        """End what this apply has started: after a failure, and after a rehearsal. Raises StepFailed."""
        servers, self.servers = self.servers, []
        try:
            self.journal.write("serve_stop", "begin", run=self.run, serve=self.name)
        finally:
            for server in reversed(servers):
                await server.stop(5.0 if server.simulated else self.settings.grace_s)
        await self._mask()
        self.journal.write("serve_stop", "end", run=self.run)

    async def _mask(self) -> None:
        assert self.launch is not None
        values = secret_values(one.env for one in self.launch.servers)
        await asyncio.to_thread(mask_logs, serve_folder(self.settings.root, self.name), values)

    @contextlib.asynccontextmanager
    async def _or_nothing(self) -> AsyncIterator[None]:
        """End what was started when the block fails."""
        try:
            yield
        except BaseException:
            self.turn.give()
            with contextlib.suppress(StepFailed, OSError):
                await self.end()
            raise

    async def _stop_known(self, known: Mapping[str, Any]) -> None:
        self._tell("stopping", known["run"])
        with step_failures(), self.journal.effect("serve_stop", known["run"], serve=self.name):
            await asyncio.to_thread(end_known, self.settings.root, known)
            if not known["simulated"]:
                await until_released(known["place"]["gpus"], runtime_of(known["runtime"]))
            await self._note(None)
        self._tell("stopped", known["run"])

    async def _record(self) -> dict[str, Any]:
        """Return what the state keeps of the servers."""
        assert self.launch is not None and self.launch.placement is not None
        launch, placement, front = self.launch, self.launch.placement, self.servers[-1]
        kept = []
        for server in self.servers:
            planned = server.planned
            kind = planned.kind if planned.kind in DIALECTS else "openai"
            assert server.handle is not None
            kept.append({"role": planned.role, "runtime": server.runtime.name, "argv": list(server.start.argv),
                         "env": planned.env, "handle": server.handle, "probe": kind, "url": server.url})  # fmt: skip
            if server.runtime.name == "docker":
                with step_failures():
                    await asyncio.to_thread(keep_inspection, server.start.folder, planned.role, server.handle,
                                            planned.env)  # fmt: skip
        return {
            "run": self.run,
            "served": self.name,
            "stack": launch.stack,
            "variant": launch.variant,
            "layout": launch.layout,
            "runtime": front.runtime.name,
            "simulated": self.settings.rehearsal,
            "host": platform.node(),
            "lineage": self.settings.lineage,
            "plan": self.settings.plan_id,
            "source": launch.source,
            "spec": spec_of(launch),
            "place": place_of(placement),
            "model_path": launch.model_path,
            "engine_version": await self.servers[-1].probe.version(),
            "servers": kept,
            **self._learned,
        }

    def _fresh_folder(self) -> Path:
        """Return the entry's folder; the log of the server before stays beside the new one."""
        folder = serve_folder(self.settings.root, self.name)
        folder.mkdir(parents=True, exist_ok=True)
        for log in folder.glob("server*.log"):
            if not log.name.endswith(".before.log"):
                log.replace(log.with_suffix(".before.log"))
        return folder

    def _known(self) -> dict[str, Any] | None:
        state, _ = states.load(self.settings.root)
        return state.serves.get(self.name) if state else None

    async def _note(self, entry: dict[str, Any] | None) -> None:
        async with self._serial:
            await asyncio.to_thread(
                note, self.settings.root, self.name, entry, self.settings.plan_id, self.settings.rehearsal
            )

    def _looked(self) -> None:
        self._tail.tell(self.servers)
        if self.turn.taken and all(one.facts().kv_tokens for one in self.servers[:-1] or self.servers):
            self.turn.give()

    def _tell(self, what: str, run: str, sentence: str = "") -> None:
        self.sink({"event": "serve", "serve": self.name, "run": run, "what": what, "sentence": sentence})


def note(root: Path, name: str, entry: dict[str, Any] | None, plan_id: str, simulated: bool) -> None:
    """Write into the state that an entry is served, or no longer; a serial is made for it."""
    state, _ = states.load(root)
    assert state is not None
    state.serves.pop(name, None)
    if entry is not None:
        state.serves[name] = entry
    states.keep_entry(root, name, entry)
    states.note_plan(state.partition(simulated), plan_id)
    states.save(root, state)


def runs(known: Mapping[str, Any]) -> bool:
    """Return whether all servers of an entry run."""
    return all(runtime_of(one["runtime"]).exited(one["handle"]) is None for one in known["servers"])


def end_known(root: Path, known: Mapping[str, Any]) -> None:
    """End the servers of an entry as the state tells of them. Raises LcplanError, `serve-elsewhere` among others."""
    try:
        require_here(known)
    except Unseen as why:
        raise fail("serve-elsewhere", f"serve entry {known['served']} can't be stopped from here: {why}",
                   f"run lcplan on {known['host']}") from why  # fmt: skip
    for one in reversed(known["servers"]):
        grace_s = 5.0 if known["simulated"] else float(known["spec"]["docker"].get("stop_grace_s", _GRACE_S))
        runtime_of(one["runtime"]).stop(one["handle"], grace_s)
    mask_logs(serve_folder(root, known["served"]), secret_values(one["env"] for one in known["servers"]))


def end_serves(root: Path, sink: Sink) -> list[str]:
    """End every entry of a state and return the labels of what ran. The caller holds the lock. Raises LcplanError."""
    state, _ = states.load(root)
    serves = dict(state.serves) if state else {}
    # What this machine can't end comes last, so that it keeps nothing else from being ended.
    for name, known in sorted(serves.items(), key=lambda item: item[1]["host"] != platform.node()):
        sink({"event": "serve", "serve": name, "run": known["run"], "what": "stopping", "sentence": ""})
        end_known(root, known)
        note(root, name, None, "destroy", known["simulated"])
    return [known["run"] for known in serves.values()]


def _label(name: str, before: str) -> str:
    """Return the label of a server: `serve__<entry>__<MMDD-HHMMSS>`, another one than the server before had."""
    now = datetime.now(UTC)
    while (label := f"serve__{name}__{now:%m%d-%H%M%S}") == before:
        now += timedelta(seconds=1)
    return label
