"""An engine's own counters around a measurement: read before and after, compared, kept as they came."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

from lcplan.engine import dialect
from lcplan.engine.dialect import DIALECTS, Counters
from lcplan.workload.client import Client
from lcplan.workload.job import Job

_LATEST = ("waiting", "running", "kv_usage", "accept_length")  # gauges: no difference means anything
_SETTLE_S = 0.05
_SETTLE_TRIES = 20
_GAP_S = 0.5
_WATCH_S = 2.0  # seldom, because rendering a metrics page costs the server some milliseconds


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The metrics pages of a launch at one moment: their text and what they say, None where no page answers."""

    text: str = ""
    counters: Counters | None = None


@dataclass(slots=True)
class Watched:
    """The highest gauges seen while a measurement ran."""

    waiting: float = 0.0
    kv_usage: float | None = None

    def see(self, waiting: float | None, usage: float | None) -> None:
        """Take one reading."""
        self.waiting = max(self.waiting, waiting or 0.0)
        if usage:  # 0 is what an engine says before it begins and after it has ended
            self.kv_usage = max(self.kv_usage or 0.0, usage)


async def snapshot(client: Client, job: Job) -> Snapshot:
    """Return the counters of all servers of a launch, added up; without counters when one of them has no page."""
    pages = await asyncio.gather(*(_page(client, url) for url in _urls(job)))
    if not all(pages):
        return Snapshot()
    text = "".join(f"# {url}\n{page}" for url, page in zip(_urls(job), pages, strict=True))
    known = _sum([dialect.counters(page or "", job.engine) for page in pages])
    return Snapshot(text, known if known.queried is not None or known.waiting is not None else None)


async def settled(client: Client, job: Job, before: Snapshot, prompt_tokens: int) -> Snapshot:
    """Return the counters once they have counted this many new prompt tokens, or have stopped moving.

    An engine may count a request a moment after its last chunk was sent.
    """
    last = await snapshot(client, job)
    for _ in range(_SETTLE_TRIES):
        queried = difference(before, last).queried
        if queried is None or queried >= prompt_tokens:
            break
        await asyncio.sleep(_SETTLE_S)
        again = await snapshot(client, job)
        if again.counters == last.counters:
            break
        last = again
    return last


def difference(before: Snapshot, after: Snapshot) -> Counters:
    """Return what was counted between two snapshots; gauges are the later ones; None where either says nothing."""
    if before.counters is None or after.counters is None:
        return Counters()
    old, new = before.counters, after.counters
    change: dict[str, Any] = {}
    for one in fields(Counters):
        first, then = getattr(old, one.name), getattr(new, one.name)
        if one.name == "accepted_per_position":
            change[one.name] = {at: value - first.get(at, 0.0) for at, value in then.items()}
        elif one.name in _LATEST:
            change[one.name] = then
        else:
            change[one.name] = None if first is None or then is None else then - first
    return Counters(**change)


def as_json(counters: Counters | None) -> dict[str, Any] | None:
    """Return counters as plain data, those that say nothing left out."""
    return None if counters is None else {k: v for k, v in asdict(counters).items() if v is not None and v != {}}


@contextlib.asynccontextmanager
async def watching(client: Client, job: Job) -> AsyncIterator[Watched]:
    """Read the gauges while the body runs, now and then and soon after a first token, and hand out the highest ones.

    At a first token the pool is as full as a request's prefill makes it, however short the answer.
    """
    seen, first_token = Watched(), asyncio.Event()
    client.on_first_token = first_token.set
    task = asyncio.create_task(_watch(client, job, seen.see, first_token))
    try:
        yield seen
    finally:
        client.on_first_token = None
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _watch(
    client: Client, job: Job, see: Callable[[float | None, float | None], None], first_token: asyncio.Event
) -> None:
    speed = job.speed if job.simulated else 1.0
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.05, _WATCH_S / speed)):
                await first_token.wait()
        first_token.clear()
        for page in await asyncio.gather(*(_page(client, url) for url in _urls(job))):
            if page is None:
                return
            found = dialect.gauges(page, job.engine)
            see(found.waiting, found.kv_usage)
        await asyncio.sleep(_GAP_S / speed)


async def _page(client: Client, url: str) -> str | None:
    try:
        status, text = await client.get(url)
    except OSError:
        return None
    return text if status == 200 else None


def _urls(job: Job) -> tuple[str, ...]:
    return job.metrics_urls or (job.base_url + DIALECTS[job.engine].metrics,)


def _sum(pages: list[Counters]) -> Counters:
    total: dict[str, Any] = {}
    for one in fields(Counters):
        values = [value for page in pages if (value := getattr(page, one.name)) is not None]
        if one.name == "accepted_per_position":
            total[one.name] = {at: sum(v.get(at, 0.0) for v in values) for at in {at for v in values for at in v}}
        elif one.name in ("kv_usage", "accept_length"):
            total[one.name] = max(values) if values else None
        else:
            total[one.name] = sum(values) if values else None
    return Counters(**total)
