"""One server of a run: started, read, asked, proven ours, ended. Failures carry their class and what the log said."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from lcplan.apply.events import Sink
from lcplan.apply.journal import Journal
from lcplan.apply.probe import Probe
from lcplan.apply.secrets import api_key, mask, secret_values
from lcplan.base.canonical import digest
from lcplan.base.diagnostics import LcplanError
from lcplan.engine.dialect import DIALECTS
from lcplan.plan.model import Server as Planned
from lcplan.runtime.base import Handle, Runtime, Start

if TYPE_CHECKING:
    from lcplan.engine.logs import LogFacts

_FIRST_POLL_S, LAST_POLL_S = 0.03, 1.0
_POLL_SHARE = 0.05
"""How much of the time that a start has taken so far may be lost by looking too late."""
_DEATH_POLL_S = 0.2
_QUIET_LIMIT_S = 900.0
"""Seconds without a new log line after which a start counts as hung (good starts were silent for up to 65 s)."""
_TOKEN_LIMIT_S = 30.0
_TELL_S = 1.0
_SHOWN = 4096
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
SIMULATOR_NOTICE = b"lcplan simulator: every number of this server is simulated"
"""What the simulator writes at the top of its log, whatever started it."""


class StepFailed(Exception):
    """A step that can't be done: a class of failure, a sentence and a hint, and the log of the server it is about."""

    def __init__(self, reason: str, sentence: str, hint: str = "", log: LogFacts | None = None) -> None:
        super().__init__(sentence)
        self.reason, self.sentence, self.hint, self.log = reason, sentence, hint, log


class Server:
    """A server of a run. Nothing of it exists before `launch`. Its served name is that of the run unless given."""

    def __init__(self, planned: Planned, start: Start, runtime: Runtime, served: str = "") -> None:
        from lcplan.engine.logs import LogReader

        self.planned, self.start, self.runtime = planned, start, runtime
        self.served = served or start.run
        self.named = planned.kind != "openai" or self.served in start.argv
        """Whether the command tells the server its name; else the name is the server's own, and proves nothing."""
        self.last_line = ""
        self._secrets = secret_values([planned.env])
        self._held = b""
        self.url = f"http://{runtime.address()}:{start.port}"
        self.handle: Handle | None = None
        self.heard = time.monotonic()
        self._probe: Probe | None = None
        self._log, self._log_at, self._notice = LogReader(planned.kind), 0, False

    @property
    def probe(self) -> Probe:
        """Questions to the server; a router is asked what any OpenAI-compatible server is."""
        if self._probe is None:
            kind = self.planned.kind
            self._probe = Probe.open(kind if kind in DIALECTS else "openai", self.url, api_key(self.planned.env))
        return self._probe

    @property
    def simulator_speed(self) -> float | None:
        """The speed that the server told of itself as a simulator, None when it has not."""
        return self._probe.simulator_speed if self._probe is not None else None

    @property
    def simulated(self) -> bool:
        """Whether the server says of itself that it is lcplan's simulator."""
        return self._notice or self.simulator_speed is not None

    def facts(self) -> LogFacts:
        """Return what the log says, read to its end."""
        self.read_log()
        return self._log.facts()

    async def launch(self, journal: Journal) -> None:
        """Start the server. Raises StepFailed."""
        template = digest(self.planned.argv)
        with journal.effect("launch", self.start.run, role=self.start.role, argv_sha256=template) as outcome:
            with step_failures():
                self.handle = await asyncio.to_thread(self.runtime.start, self.start)
            outcome["handle"] = self.handle
        self.heard = time.monotonic()

    async def is_ready(self) -> bool:
        """Return whether the engine says that it is ready. Raises StepFailed when it says that it is dead."""
        said = await self.probe.ready()
        if said == "dead":
            raise self.crash("the engine reports that it is dead")
        if said == "ready" and not self.named and (names := await self.probe.served()):
            self.served = next((name for name in names if name in self.planned.argv), names[0])
        return said == "ready"

    async def generates(self, limit_s: float) -> None:
        """Make sure that a token comes within so many seconds. Raises StepFailed."""
        if not await self._token(limit_s):
            self.require_alive()
            raise self.crash("health is fine, but no token was generated", "engine_stuck")

    async def require_ours(self) -> None:
        """Make sure that the server on the port is the one that was started. Raises StepFailed."""
        names = await self.probe.served()
        if self.served not in names:
            sentence = f"the server on port {self.start.port} serves {names or 'nothing'}, not {self.served}"
            raise StepFailed("foreign_server", sentence, "another server holds the port; stop it")

    def read_log(self) -> bool:
        """Read what the log has grown by; return whether it did."""
        at = self._log_at
        with contextlib.suppress(FileNotFoundError), self.start.log.open("rb") as file:
            file.seek(self._log_at)
            while block := file.read(1 << 20):
                self._log_at += len(block)
                # A line is read when it is whole, so that no part of a secret is taken for something else.
                whole, newline, self._held = (self._held + block).rpartition(b"\n")
                self._take(whole + newline)
        if self._log_at > at:
            self.heard = time.monotonic()
        return self._log_at > at

    def require_alive(self) -> None:
        """Raise StepFailed when the server has ended."""
        status = self.exited()
        if status is not None:
            shown = "" if status == -1 else f" with status {status}"
            raise self.crash(f"the server ended{shown}", exit_code=status)

    def exited(self) -> int | None:
        """Return the exit status, None while the server runs."""
        assert self.handle is not None
        return self.runtime.exited(self.handle)

    def crash(self, sentence: str, reason: str = "", exit_code: int | None = None) -> StepFailed:
        """Return the failure with the class and the last error of the log."""
        from lcplan.engine.logs import classify_exit

        self.read_log()
        self._take(self._held)
        self._held = b""
        hint, facts = "", self._log.facts()
        found = classify_exit(facts, exit_code)
        if found is not None and (facts.failure or not reason):
            reason, hint = found.kind, found.hint
            sentence = f"{sentence}: {found.sentence}"
        if facts.last_error and facts.last_error not in sentence:
            sentence += f" ({facts.last_error.strip()[:300]})"
        if self.start.role:
            sentence = f"{self.start.role}: {sentence}"
        return StepFailed(reason or "server_died", sentence, hint, facts)

    async def stop(self, grace_s: float) -> None:
        """Close the connections and end the server, whatever state it is in. Raises StepFailed."""
        if self._probe is not None:
            await self._probe.close()
        if self.handle is not None:
            with step_failures():
                await asyncio.to_thread(self.runtime.stop, self.handle, grace_s)
            self.read_log()
            self._take(self._held)
            self._held = b""

    def _take(self, text: bytes) -> None:
        if not text:
            return
        self._notice |= SIMULATOR_NOTICE in text
        if self._secrets:
            text = mask(text.decode(errors="replace"), self._secrets).encode()
        self._log.feed(text)
        shown = _ESCAPES.sub("", text[-_SHOWN:].decode(errors="replace")).strip()
        self.last_line = shown.splitlines()[-1].strip() if shown else self.last_line

    async def _token(self, limit_s: float) -> bool:
        try:
            return await asyncio.wait_for(self.probe.token(self.served), limit_s)
        except TimeoutError:
            return False


class LogTail:
    """Tells the last line of the servers' logs while they start, at most once a second."""

    def __init__(self, sink: Sink, launch: str, run: str) -> None:
        self._sink, self._event = sink, {"event": "log", "launch": launch, "run": run}
        self._told, self._next = "", 0.0

    def tell(self, servers: Sequence[Server]) -> None:
        """Tell the last line of the first server that is not silent, when there is a new one."""
        line = next((one.last_line for one in servers if one.last_line), "")
        if line != self._told and time.monotonic() >= self._next:
            self._told, self._next = line, time.monotonic() + _TELL_S
            self._sink({**self._event, "line": line})


async def until_ready(
    servers: Sequence[Server], limit_s: float, give_up: asyncio.Event, looked: Callable[[], None]
) -> None:
    """Wait until every server is ready and has generated a token. `looked` is called after each look at the logs.

    Raises StepFailed: `interrupted` when `give_up` is set, `never_ready` after `limit_s`, `hang` for a silent log.
    """
    began, waiting = time.monotonic(), list(servers)
    while waiting:
        if give_up.is_set():
            raise StepFailed("interrupted", "stopped while the server was starting")
        for server in waiting:
            server.read_log()
        looked()
        for server in servers:
            server.require_alive()
        waiting = [server for server in waiting if not await server.is_ready()]
        for server in waiting:
            if time.monotonic() - began > limit_s:
                raise server.crash(f"not ready after {limit_s:g} s", "never_ready")
            if time.monotonic() - server.heard > _QUIET_LIMIT_S:
                raise server.crash(f"nothing new in the log for {_QUIET_LIMIT_S:.0f} s", "hang")
        if waiting:
            await asyncio.sleep(min(LAST_POLL_S, max(_FIRST_POLL_S, _POLL_SHARE * (time.monotonic() - began))))
    for server in servers:
        await server.generates(max(_TOKEN_LIMIT_S, began + limit_s - time.monotonic()))


async def first_death(servers: Sequence[Server]) -> Server:
    """Wait until a server ends and return it."""
    while True:
        for server in servers:
            if await asyncio.to_thread(server.exited) is not None:
                return server
        await asyncio.sleep(_DEATH_POLL_S)


@contextlib.contextmanager
def step_failures() -> Iterator[None]:
    """Turn what a runtime raises into the failure of a step."""
    try:
        yield
    except LcplanError as problem:
        first = problem.diagnostics[0]
        raise StepFailed(first.code, first.message, first.hint) from problem


def script_of_all(servers: Sequence[Server], header: Sequence[str]) -> str:
    """Return a cmd.sh that starts the servers of a split layout by their own scripts, the last one when all answer."""
    *behind, front = servers
    lines = ["#!/usr/bin/env bash", *(f"# {line}" for line in header), "set -eu", 'cd "$(dirname "$0")"']
    lines += [f"bash {server.start.script.name} &" for server in behind]
    lines += [f"until curl -sf {server.url}/health; do sleep 1; done" for server in behind]
    return "\n".join([*lines, f"exec bash {front.start.script.name}"]) + "\n"
