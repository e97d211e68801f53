"""The measuring process of one launch: JSON lines in, JSON lines out, ends at once when its stdin closes.

`python -m lcplan.workload.child` reads `{"job": ...}`, then `{"measure": ...}` one at a time, then `{"finish": true}`,
and writes `progress`, `result` and `error` events. It inherits nothing and shares no event loop with anyone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from typing import Any

from lcplan.workload.client import Client
from lcplan.workload.job import BadMessage, Job, read_cell, read_job
from lcplan.workload.measure import measure
from lcplan.workload.measurement import Session

_PROGRESS_S = 0.5
_GRACE_S = 3.0
_END: dict[str, Any] = {}


def main() -> int:
    """Run the child and return its exit status: 0 after `finish`, 1 after a bad job or when stdin closed first."""
    import aiohttp  # noqa: F401  all that is heavy, before the first job comes
    import httpx_aiohttp  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import uvloop

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for apply, which lets the cell end first
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve())


async def _serve() -> int:
    inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    closed = asyncio.Event()
    threading.Thread(target=_read, args=(asyncio.get_running_loop(), inbox, closed), daemon=True).start()
    work = asyncio.create_task(_work(inbox))
    ended = asyncio.create_task(closed.wait())
    await asyncio.wait({work, ended}, return_when=asyncio.FIRST_COMPLETED)
    ended.cancel()
    if not work.done():
        work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        return await work
    return 1


def _read(loop: asyncio.AbstractEventLoop, inbox: asyncio.Queue[dict[str, Any]], closed: asyncio.Event) -> None:
    """Read stdin in a thread of its own, so that its end is seen whatever the event loop is doing."""
    for line in sys.stdin.buffer:
        try:
            message = json.loads(line)
        except ValueError:
            message = {"bad": line.decode(errors="replace")[:200]}
        loop.call_soon_threadsafe(inbox.put_nowait, message)
        if isinstance(message, Mapping) and message.get("finish"):
            return
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(closed.set)
    time.sleep(_GRACE_S)
    os._exit(1)


async def _work(inbox: asyncio.Queue[dict[str, Any]]) -> int:
    say = Speaker()
    try:
        message = await inbox.get()
        if not isinstance(message.get("job"), Mapping):
            raise BadMessage("the first message must be the job")
        job = read_job(message["job"])
    except BadMessage as error:
        say({"event": "error", "sentence": str(error)})
        return 1
    async with Client(job.base_url, simulated=job.simulated) as client:
        await _cells(job, client, inbox, say)
    return 0


async def _cells(job: Job, client: Client, inbox: asyncio.Queue[dict[str, Any]], say: Speaker) -> None:
    session = Session(job, client, say)
    while not (message := await inbox.get()).get("finish"):
        try:
            if not isinstance(message.get("measure"), Mapping):
                raise BadMessage(f"a message is neither 'measure' nor 'finish': {sorted(message)}")
            cell = read_cell(message["measure"])
        except BadMessage as error:
            say({"event": "error", "sentence": str(error)})
            continue
        try:
            say(await measure(session, cell))
        except OSError as error:
            say(
                {
                    "event": "error",
                    "cell": cell.name,
                    "sentence": f"the records of {cell.name} cannot be written: {error}",
                }
            )


class Speaker:
    """Writes events to stdout, progress at most twice a second."""

    def __init__(self) -> None:
        self._quiet_until = 0.0

    def __call__(self, event: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if event["event"] == "progress":
            if now < self._quiet_until:
                return
            self._quiet_until = now + _PROGRESS_S
        try:
            sys.stdout.write(json.dumps(event, ensure_ascii=False) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            os._exit(1)  # nobody listens any more, so nothing more may be sent


if __name__ == "__main__":
    try:
        status = main()
    except Exception:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    os._exit(status)  # the thread that reads stdin may wait there for ever
