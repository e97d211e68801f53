"""`oneshot`: one long prompt alone on the engine; time to first token, prefill speed, decode speed at that depth."""

from __future__ import annotations

from lcplan.workload.measurement import Measurement
from lcplan.workload.segment import Findings


async def run(m: Measurement) -> Findings:
    """Measure `{prompt, output}`."""
    prompt, output = m.cell.count("prompt"), m.cell.count("output")
    request = m.request(m.prompt("0", prompt), output, label="0")
    return Findings([await m.run_plan([[request]])])
