"""The load of a point: users at once or requests that come at a rate, and a needle that is asked while it runs.

The needle is one request more than the point's. It counts in no figure of the load, only as found or not.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from lcplan.workload import needle
from lcplan.workload.exchange import Record, Request
from lcplan.workload.job import BadMessage
from lcplan.workload.measurement import Measurement
from lcplan.workload.needle import Needle
from lcplan.workload.parts import append_needles
from lcplan.workload.segment import Findings, Segment

DEPTH = 0.5
_ANSWER = 512
"""Tokens of the needle's answer; less where the point itself is not twice as long."""


@dataclass(frozen=True, slots=True)
class Beside:
    """The needle that is asked beside a load, and its request."""

    needle: Needle
    request: Request


async def closed(m: Measurement, users: Sequence[Sequence[Request]]) -> Segment:
    """Return the stretch of users who each send their requests one after the other."""
    asked = await beside(m, len(users))
    segment = await m.run_plan([*users, *([[asked.request]] if asked else [])])
    return set_aside(m, segment, asked)


async def at_rate(m: Measurement, requests: Sequence[Request], rate: float) -> Findings:
    """Return the findings of requests that come at `rate` per second, at random like those of independent users."""
    gaps = random.Random(m.identity.seed())
    offsets = list(accumulate((gaps.expovariate(rate) for _ in requests[1:]), initial=0.0))
    asked = await beside(m, len(requests))
    if asked:
        requests, offsets = [*requests, asked.request], [*offsets, offsets[len(offsets) // 2]]
    segment = set_aside(m, await m.run_open(requests, offsets), asked)
    return Findings([segment], arrivals(segment))


def arrivals(segment: Segment) -> dict[str, Iterable[float | None]]:
    """Return how many requests per second were answered, from the first one sent to the last token."""
    ends = [record.last for record in segment.completed if record.last is not None]
    seconds = (max(ends) - min(record.sent for record in segment.completed)) / 1e9 if ends else 0.0
    return {"requests_per_s": [len(ends) / seconds] if seconds > 0 else []}


async def beside(m: Measurement, user: int) -> Beside | None:
    """Return the needle that the cell wants asked beside its load, as long as one of its requests; None without."""
    if not m.cell.workload.get("needle"):
        return None
    whole = m.cell.count("prompt") + m.cell.count("output")
    output = min(_ANSWER, whole // 2)
    planted = needle.plant(m, "beside")
    prompt = await needle.haystack(m, "beside", whole - output, DEPTH, planted)
    request = m.request(prompt, output, label="beside", forced=False, keep_text=True, user=user, depth=DEPTH)
    return Beside(planted, request)


def set_aside(m: Measurement, segment: Segment, asked: Beside | None, record: Record | None = None) -> Segment:
    """Return the stretch with the needle's record kept apart and judged: one of its own, or `record`."""
    if asked is None:
        return segment
    own = [one for one in segment.records if one.request.salt == asked.request.salt]
    segment.records = [one for one in segment.records if one.request.salt != asked.request.salt]
    segment.aside = own or ([record] if record else [])
    rows = [needle.log_row(m, one, asked.needle, DEPTH) for one in segment.aside]
    append_needles(m.job, rows)
    segment.needles = (sum(row["ok"] for row in rows), len(rows))
    return segment


def rate_of(m: Measurement) -> float | None:
    """Return the requests per second of a cell, None when it has users. Raises BadMessage."""
    rate = m.cell.workload.get("rate")
    if rate is not None and (isinstance(rate, bool) or not isinstance(rate, (int, float)) or rate <= 0):
        raise BadMessage(f"{m.cell.name}: 'rate' must be a number above 0, got {rate!r}")
    return rate
