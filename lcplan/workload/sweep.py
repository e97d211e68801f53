"""`sweep`: many requests at a fixed concurrency, measured by the real `vllm bench serve`.

On the simulator time is virtual, which no foreign tool knows: there lcplan's own client sends the same load.
"""

from __future__ import annotations

from collections.abc import Mapping

from lcplan.workload import bench, counting
from lcplan.workload.job import BadMessage
from lcplan.workload.measurement import Measurement
from lcplan.workload.segment import Findings
from lcplan.workload.validity import CannotMeasure, Reason


async def run(m: Measurement) -> Findings:
    """Measure `{prompt, users, output, requests: {per_user, min}}`."""
    point = bench.Point(m.cell.count("prompt"), m.cell.count("output"), m.cell.count("users"), _requests(m))
    return await _rehearse(m, point) if m.job.simulated else await _bench(m, point)


async def _bench(m: Measurement, point: bench.Point) -> Findings:
    if not m.cell.bench:
        raise CannotMeasure(Reason.BENCH_MISSING)
    before = await m.count()
    m.progress(f"vllm bench serve: {point.requests} requests, {point.users} at once")
    async with counting.watching(m.session.client, m.job) as seen:
        records = await bench.run(m, m.cell.bench, point)
    return Findings([await m.segment(records, before, seen, None, loose=True)])


async def _rehearse(m: Measurement, point: bench.Point) -> Findings:
    plan = [
        m.request(m.prompt(str(i), point.prompt), point.output, label=str(i), user=i % point.users)
        for i in range(point.requests)
    ]
    users = [plan[user :: point.users] for user in range(min(point.users, point.requests))]
    return Findings([await m.run_plan(users)])


def _requests(m: Measurement) -> int:
    """Return how many requests a point sends: `per_user` for each user, at least `min`."""
    spec = m.cell.workload.get("requests") or {}
    if not isinstance(spec, Mapping):
        raise BadMessage(f"{m.cell.name}: 'requests' must be a mapping, got {spec!r}")
    per_user, least = spec.get("per_user") or 1, spec.get("min") or 1
    if type(per_user) is not int or type(least) is not int:
        raise BadMessage(f"{m.cell.name}: 'requests' holds whole numbers, got {dict(spec)!r}")
    return max(per_user * m.cell.count("users"), least)
