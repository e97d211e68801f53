"""The measuring child of one launch: a process of its own that inherits nothing and ends when its stdin closes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Mapping
from typing import Any

from lcplan.apply.events import Sink

_LINE_LIMIT = 64 * 1024 * 1024
_END_S = 10.0
_LAST_WORDS_S = 10.0


class NoResult(Exception):
    """A cell of which the measuring child gave no result: the status it gets, why, and a sentence."""

    def __init__(self, status: str, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.reason, self.sentence = status, reason, sentence


class Measuring:
    """Measures the cells of a launch in a child, with a new child after one that was given up."""

    def __init__(self, run: str, log: str, sink: Sink, key: str = "") -> None:
        self._run, self._log, self._sink, self._key = run, log, sink, key
        self._child: Child | None = None

    async def prepare(self) -> None:
        """Start the child, so that it imports its libraries while the server starts."""
        if self._child is None:
            self._child = await Child.start(self._run, self._log, self._sink, self._key)

    async def cell(
        self, job: Mapping[str, Any], request: Mapping[str, Any], deadline_s: float, stop: Awaitable[Any],
        death: Awaitable[Any],
    ) -> dict[str, Any]:  # fmt: skip
        """Return the result of a cell. Raises NoResult: too late, the child died, `stop` or `death` came first."""
        ends = [asyncio.ensure_future(stop), asyncio.ensure_future(death)]
        try:
            await self.prepare()
            assert self._child is not None
            await self._child.take(job)
            work = asyncio.ensure_future(self._child.measure(request, deadline_s))
            finished, _ = await asyncio.wait({work, *ends}, return_when=asyncio.FIRST_COMPLETED)
            if ends[1] in finished:
                # The client may just be writing down what it saw of the crash.
                await asyncio.wait({work}, timeout=_LAST_WORDS_S)
            if work.done():
                return work.result()
            work.cancel()
            with contextlib.suppress(BaseException):
                await work
            await self.close()
            if ends[1] in finished:
                raise NoResult("failed", "server_died", "the server died while the cell was measured")
            raise NoResult("interrupted", "interrupted", "the apply was stopped while the cell was measured")
        except TimeoutError:
            await self.close()
            raise NoResult("failed", "deadline", f"no result within {deadline_s:.0f} s") from None
        except ChildDied as problem:
            await self.close()
            raise NoResult("failed", "client_died", str(problem)) from problem
        finally:
            for one in ends:
                one.cancel()

    async def close(self) -> None:
        """End the child."""
        if self._child is not None:
            await self._child.close()
        self._child = None


class ChildDied(Exception):
    """The measuring child ended before it gave a result."""


class Child:
    """A measuring child. One cell at a time; results are plain mappings (see lcplan.workload.child)."""

    def __init__(self, process: asyncio.subprocess.Process, sink: Sink, run: str) -> None:
        self._process = process
        self._sink = sink
        self._run = run
        self._employed = False

    @classmethod
    async def start(cls, run: str, log: str, sink: Sink, key: str) -> Child:
        """Start a child for a run; what it writes to stderr goes to the file `log`. `key` is the server's API key."""
        env = _clean_environment() | ({"OPENAI_API_KEY": key} if key else {})
        with open(log, "ab") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "lcplan.workload.child",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors,
                env=env, start_new_session=True, limit=_LINE_LIMIT,
            )  # fmt: skip
        return cls(process, sink, run)

    async def take(self, job: Mapping[str, Any]) -> None:
        """Give the child its job, once. Raises ChildDied."""
        if not self._employed:
            self._employed = True
            await self._send({"job": dict(job)})

    async def measure(self, request: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
        """Return the result of one cell. Raises ChildDied, and TimeoutError after `deadline_s` wall seconds."""
        await self._send({"measure": dict(request)})
        async with asyncio.timeout(deadline_s):
            while True:
                event = await self._receive()
                if event.get("event") == "result":
                    return event
                if event.get("event") == "error":
                    raise ChildDied(str(event.get("sentence") or event.get("error") or "the measuring child gave up"))
                if event.get("event") == "progress":
                    self._sink({**event, "run": self._run})

    async def close(self) -> None:
        """End the child: its stdin closes, and after a short while it is killed."""
        with contextlib.suppress(ConnectionError, RuntimeError):
            if self._process.returncode is None and self._process.stdin is not None:
                self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _END_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            await self._process.stdin.drain()
        except (ConnectionError, RuntimeError) as problem:
            raise ChildDied(f"the measuring child ended: {problem}") from problem

    async def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            status = await self._process.wait()
            raise ChildDied(f"the measuring child ended with status {status}")
        event: dict[str, Any] = json.loads(line)
        return event


def _clean_environment() -> dict[str, str]:
    """Return what a Python process needs and nothing else: no proxies, no labels, none of the user's secrets."""
    keep = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "TMPDIR", "SSL_CERT_FILE", "TZ")
    return {key: os.environ[key] for key in keep if key in os.environ}
