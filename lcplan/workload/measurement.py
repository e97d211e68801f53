"""One launch and one cell under measurement: what a kind of workload uses to build prompts, send them and count."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lcplan.engine.dialect import DIALECTS
from lcplan.workload import counting, fleet
from lcplan.workload.client import Client, Script, sequence
from lcplan.workload.exchange import Record, Request
from lcplan.workload.job import Cell, Job, identity
from lcplan.workload.lag import beating
from lcplan.workload.prompts import Alphabet, Prompt, alphabet, body, salted
from lcplan.workload.segment import Segment
from lcplan.workload.validity import CannotMeasure, Reason

_OPEN_CONNECTIONS = 64


@dataclass(slots=True)
class Session:
    """One launch under measurement: its job, the client, and what lasts from cell to cell."""

    job: Job
    client: Client
    say: Callable[[dict[str, Any]], None]
    clock: int = 0  # virtual ns; a simulated launch has one clock from its first request on
    warmed: set[int] = field(default_factory=set)
    ids_of: dict[str, list[int]] = field(default_factory=dict)


class Measurement:
    """One cell being measured: what a kind of workload needs to build prompts, send them and ask the engine."""

    def __init__(self, session: Session, cell: Cell, attempt: str) -> None:
        self.session = session
        self.job = session.job
        self.cell = cell
        self.identity = identity(session.job, cell, attempt)
        self.ids: Alphabet = alphabet(session.job.vocabulary)
        self.pages: list[str] = []
        self._sent = 0

    def adopt(self, attempt: str, segments: Sequence[Segment]) -> None:
        """Go on from an earlier attempt: take its identity, and its place on the virtual clock."""
        self.identity = identity(self.job, self.cell, attempt)
        records = [record for segment in segments for record in segment.records]
        self._sent = len(records)
        if self.job.simulated:
            self.session.clock = max([self.session.clock, *(r.last or r.sent for r in records)])

    def prompt(self, label: str, tokens: int) -> Prompt:
        """Return a prompt of exactly `tokens` ids which nobody has sent before; the label is unique in the cell."""
        return salted(self.identity.salt(label), tokens, self.ids)

    def request(self, prompt: Prompt, output: int, *, label: str, forced: bool = True, **facts: Any) -> Request:
        """Return the request of a prompt; `facts` are further fields of `Request`. Its index counts in the cell."""
        facts = {"user": 0, "new_tokens": prompt.tokens} | facts
        made = Request(
            index=self._sent,
            prompt_tokens=prompt.tokens,
            output_tokens=output,
            body=body(prompt, self.job.served, output, forced=forced),
            forced=forced,
            salt=self.identity.salt(label).hex(),
            **facts,
        )
        self._sent += 1
        return made

    async def run(self, users: Sequence[Script], total: int) -> Segment:
        """Run users in a closed loop between two readings of the counters; `total` requests are expected."""
        client = self.session.client
        return await self._between(
            lambda: client.closed_loop(users, self.session.clock, self._count_up(total)), len(users)
        )

    async def run_open(self, requests: Sequence[Request], offsets_s: Sequence[float]) -> Segment:
        """Send every request at its offset, ended or not the earlier ones, between two readings of the counters."""
        client, total = self.session.client, len(requests)
        return await self._between(
            lambda: client.open_loop(requests, offsets_s, self.session.clock, self._count_up(total)),
            min(total, _OPEN_CONNECTIONS),
        )

    async def run_plan(self, users: Sequence[Sequence[Request]]) -> Segment:
        """Run users whose requests are all known, each its own one after the other; many users get more processes."""
        total = sum(len(user) for user in users)
        if self.job.simulated or fleet.processes(len(users)) == 1:
            return await self.run([sequence(user) for user in users], total)
        before = await self.count()
        async with counting.watching(self.session.client, self.job) as seen:
            records, lag_ms = await fleet.closed_loop(self.job.base_url, users, self._count_up(total))
        return await self.segment(records, before, seen, lag_ms)

    async def _between(self, load: Callable[[], Awaitable[list[Record]]], connections: int) -> Segment:
        before = await self.count()
        await self.session.client.open(connections)
        async with counting.watching(self.session.client, self.job) as seen, beating() as lag:
            records = await load()
        return await self.segment(records, before, seen, None if self.job.simulated else lag.p90_ms)

    async def segment(
        self,
        records: list[Record],
        before: counting.Snapshot,
        seen: counting.Watched,
        lag_ms: float | None,
        **facts: Any,
    ) -> Segment:
        """Return the segment of records that ended just now; reads the counters and moves the virtual clock on."""
        prompts = sum(r.prompt_tokens or 0 for r in records)
        after = await counting.settled(self.session.client, self.job, before, prompts)
        self.pages.append(after.text)
        if self.job.simulated:
            self.session.clock = max([self.session.clock, *(r.last or r.sent for r in records)])
        counted = counting.difference(before, after)
        return Segment(records, before.counters, after.counters, counted, seen.waiting, seen.kv_usage, lag_ms, **facts)

    async def count(self) -> counting.Snapshot:
        """Return the engine's counters now; the first page of a cell is kept."""
        now = await counting.snapshot(self.session.client, self.job)
        if not self.pages:
            self.pages.append(now.text)
        return now

    async def tokenize(self, text: str) -> list[int]:
        """Return the server's token ids of a text that is used again and again. Raises CannotMeasure."""
        known = self.session.ids_of
        if text not in known:
            known[text] = await self.ids_of(text)
        return known[text]

    async def ids_of(self, text: str) -> list[int]:
        """Return the server's token ids of a text, without special ones. Raises CannotMeasure."""
        ask = {"model": self.job.served, "prompt": text, "add_special_tokens": False}
        try:
            status, reply = await self.session.client.post(
                self.job.engine_url + DIALECTS[self.job.engine].tokenize, ask
            )
        except OSError as error:
            raise CannotMeasure(Reason.SERVER_GONE, str(error)) from error
        ids = _token_ids(status, reply)
        if not ids:
            raise CannotMeasure(Reason.NO_TOKENIZE, f"status {status}")
        return ids

    def progress(self, text: str) -> None:
        """Tell how far the cell is."""
        self.session.say({"event": "progress", "cell": self.cell.name, "text": text})

    def _count_up(self, total: int) -> Callable[[Record], None]:
        ended = 0

        def done(_: Record) -> None:
            nonlocal ended
            ended += 1
            self.progress(f"{ended} of {total} requests")

        return done


def _token_ids(status: int, reply: str) -> list[int]:
    try:
        ids = json.loads(reply).get("tokens") if status == 200 else None
    except (ValueError, AttributeError):
        return []
    return ids if isinstance(ids, list) and all(type(i) is int for i in ids) else []
