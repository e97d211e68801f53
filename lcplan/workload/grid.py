"""`grid`: as many users at once as a point says, each with one prompt of its own."""

from __future__ import annotations

from lcplan.workload.measurement import Measurement
from lcplan.workload.segment import Findings


async def run(m: Measurement) -> Findings:
    """Measure `{prompt, users, output}`."""
    prompt, users, output = m.cell.count("prompt"), m.cell.count("users"), m.cell.count("output")
    requests = [m.request(m.prompt(str(u), prompt), output, label=str(u), user=u) for u in range(users)]
    return Findings([await m.run_plan([[request] for request in requests])])
