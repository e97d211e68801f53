"""`sweep`: many requests at a fixed concurrency or rate, measured by the real `vllm bench serve`.

On the simulator time is virtual, which no foreign tool knows: there lcplan's own client sends the same load.
"""

from __future__ import annotations

import asyncio
import time

from lcplan.workload import bench, counting, load
from lcplan.workload.measurement import Measurement
from lcplan.workload.segment import Findings
from lcplan.workload.validity import CannotMeasure, Reason

_LOOK_S = 0.5
_MANY = 2
"""Requests at once that show the load of a point: before it, the tool tries a single one."""


async def run(m: Measurement) -> Findings:
    """Measure `{prompt, users, output, requests: {per_user, min}}`, or a `rate` with `requests: {total}`."""
    rate = load.rate_of(m)
    users = m.cell.count("users") if rate is None else None
    count = m.cell.requests("total") if users is None else max(m.cell.requests("per_user", 1) * users,
                                                               m.cell.requests("min", 1))  # fmt: skip
    point = bench.Point(m.cell.count("prompt"), m.cell.count("output"), users, count, rate)
    return await _rehearse(m, point) if m.job.simulated else await _bench(m, point)


async def _bench(m: Measurement, point: bench.Point) -> Findings:
    if not m.cell.bench:
        raise CannotMeasure(Reason.BENCH_MISSING)
    asked = await load.beside(m, point.users or point.requests)
    before = await m.count()
    m.progress(f"vllm bench serve: {point.requests} requests, {point.load}")
    async with counting.watching(m.session.client, m.job) as seen:
        running = asyncio.create_task(_until_running(m, min(point.users or 1, _MANY)))
        tool = asyncio.create_task(bench.run(m, m.cell.bench, point))
        try:
            await asyncio.wait({running, tool}, return_when=asyncio.FIRST_COMPLETED)
            answer = None
            if asked is not None and not tool.done():
                answer = await m.session.client.send(asked.request, time.perf_counter_ns())
            records = await tool
        finally:
            running.cancel()
            tool.cancel()
            await asyncio.wait({running, tool})
    segment = await m.segment(records, before, seen, None, loose=True)
    segment = load.set_aside(m, segment, asked, answer)
    return Findings([segment], load.arrivals(segment) if point.rate is not None else {})


async def _rehearse(m: Measurement, point: bench.Point) -> Findings:
    plan = [
        m.request(m.prompt(str(i), point.prompt), point.output, label=str(i), user=i % (point.users or 1))
        for i in range(point.requests)
    ]
    if point.rate is not None:
        return await load.at_rate(m, plan, point.rate)
    assert point.users is not None
    users = [plan[user :: point.users] for user in range(min(point.users, point.requests))]
    return Findings([await load.closed(m, users)])


async def _until_running(m: Measurement, enough: int) -> None:
    """Wait until the engine says that it runs the tool's load; for ever where it does not tell."""
    while True:
        counters = (await counting.snapshot(m.session.client, m.job)).counters
        if counters is not None and (counters.running or 0) >= enough:
            return
        await asyncio.sleep(_LOOK_S)
