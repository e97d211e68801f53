"""Many users spread over processes, when one core cannot read all their streams on time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from typing import Any

from lcplan.workload.exchange import Record, Request, from_plain

USERS_PER_PROCESS = 64  # up to here one core keeps the error below 1 % of a first token after 500 ms
_LINE = 64 * 1024 * 1024
_STOP_S = 2.0


def processes(users: int) -> int:
    """Return how many processes so many users need, no more than there are cores."""
    return max(1, min(-(-users // USERS_PER_PROCESS), os.cpu_count() or 1))


async def closed_loop(
    base_url: str, users: Sequence[Sequence[Request]], done: Callable[[Record], None]
) -> tuple[list[Record], float | None]:
    """Run users in worker processes that all start together; return all records and the lag of the latest worker.

    `done` hears of every record. Raises OSError when a worker dies.
    """
    count = processes(len(users))
    async with contextlib.AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(_worker(base_url, users[n::count])) for n in range(count)]
        for worker in workers:
            await _line(worker)
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write(b"go\n")
        ends = await asyncio.gather(*(_records(worker, done) for worker in workers))
    lags = [lag for _, lag in ends if lag is not None]
    return [record for records, _ in ends for record in records], max(lags, default=None)


@contextlib.asynccontextmanager
async def _worker(base_url: str, users: Sequence[Sequence[Request]]) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "lcplan.workload.worker"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LINE,
    )
    try:
        assert process.stdin is not None
        plans = [[_plan(request, at == len(user)) for at, request in enumerate(user, 1)] for user in users]
        process.stdin.write(json.dumps({"base_url": base_url, "users": plans}).encode() + b"\n")
        for request in (request for user in users for request in user):
            process.stdin.write(request.body)
            await process.stdin.drain()
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        if process.returncode is None:
            process.kill()


def _plan(request: Request, last: bool) -> dict[str, object]:
    plan = asdict(request) | {"size": len(request.body), "last": last}
    del plan["body"]
    return plan


async def _records(
    worker: asyncio.subprocess.Process, done: Callable[[Record], None]
) -> tuple[list[Record], float | None]:
    records: list[Record] = []
    while "lag_ms" not in (line := await _line(worker)):
        records.append(from_plain(line))
        done(records[-1])
    return records, line["lag_ms"]


async def _line(worker: asyncio.subprocess.Process) -> dict[str, Any]:
    assert worker.stdout is not None
    text = await worker.stdout.readline()
    if not text:
        raise OSError("a process of the client died")
    line: dict[str, Any] = json.loads(text)
    return line
