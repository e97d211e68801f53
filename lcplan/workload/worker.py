"""A further process of the client: sends its share of the users when told to, and hands the records back.

`python -m lcplan.workload.worker` reads a JSON line `{base_url, users: [[{request, size}, ...], ...]}` and the bodies,
says `ready`, waits for a line, opens its connections, sends, and writes a JSON line a record and one with its lag. It
ends when its stdin does.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from typing import Any, BinaryIO

from lcplan.workload.client import Client, sequence
from lcplan.workload.exchange import Record, Request, as_plain
from lcplan.workload.lag import beating


def main() -> int:
    """Run the worker and return its exit status."""
    import uvloop

    source = sys.stdin.buffer
    header = json.loads(source.readline())
    users = [[_request(plan, source) for plan in user] for user in header["users"]]
    return uvloop.run(_run(header["base_url"], users, source))


async def _run(base_url: str, users: list[list[Request]], source: BinaryIO) -> int:
    loop, go = asyncio.get_running_loop(), asyncio.Event()
    async with Client(base_url) as client:
        _say({"ready": True})
        threading.Thread(target=_listen, args=(source, loop, go), daemon=True).start()
        await go.wait()
        await client.open(len(users))
        async with beating() as lag:
            await client.closed_loop([sequence(user) for user in users], done=_hand_back)
        _say({"lag_ms": lag.p90_ms})
    return 0


def _listen(source: BinaryIO, loop: asyncio.AbstractEventLoop, go: asyncio.Event) -> None:
    """Wait for the line that starts the load, then for the end: who does not listen any more wants nothing sent."""
    if source.readline():
        loop.call_soon_threadsafe(go.set)
        source.read()
    os._exit(1)


def _request(plan: dict[str, Any], source: BinaryIO) -> Request:
    return Request(body=source.read(plan.pop("size")), **plan)


def _hand_back(record: Record) -> None:
    _say(as_plain(record))


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # the thread that reads stdin may wait there for ever
