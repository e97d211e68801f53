"""`grid`: as many users at once as a point says, each with one prompt of its own, or prompts that come at a rate."""

from __future__ import annotations

from lcplan.workload import load
from lcplan.workload.measurement import Measurement
from lcplan.workload.segment import Findings


async def run(m: Measurement) -> Findings:
    """Measure `{prompt, users, output}` or `{prompt, rate, output, requests: {total}}`; `needle: true` asks one."""
    prompt, output, rate = m.cell.count("prompt"), m.cell.count("output"), load.rate_of(m)
    count = m.cell.requests("total") if rate is not None else m.cell.count("users")
    # Requests that come at a rate are nobody's: what one user sees after another is not told apart.
    users = range(count) if rate is None else [0] * count
    requests = [m.request(m.prompt(str(n), prompt), output, label=str(n), user=user) for n, user in enumerate(users)]
    if rate is not None:
        return await load.at_rate(m, requests, rate)
    return Findings([await load.closed(m, [[request] for request in requests])])
