"""One engine rank: a queue, a batch, a pool. Continuous batching with chunked prefill, in virtual seconds.

A step's work is decided when it begins, as in the real engines. vLLM mixes prefill chunks and decodes in a step; SGLang
runs prefill alone. All sequences of a batch share one list of step times: a step costs the same for one and for many.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from lcplan.sim.pool import Node, Pool

if TYPE_CHECKING:
    from lcplan.sim.profiles import Speed

NEVER = float("inf")


@dataclass(eq=False, slots=True)
class Sequence:
    """A prompt being served. `follows` means that its client reports its own virtual clock (see pace.py)."""

    prompt: bytes
    tokens: int
    output: int
    arrived: float
    output_ids: bytes = b""
    reason: str = "length"
    streaming: bool = False
    remote: bool = False  # the prompt's cache comes from a prefill server
    salt: str = ""
    order: str = ""
    follows: bool = False
    last: bool = True
    wake: Callable[[], None] = lambda: None
    rank: Rank | None = None
    node: Node | None = None
    reserved: int = 0
    cached: int = 0
    computed: int = 0
    admitted: float = -1.0
    first: float = -1.0
    ended: float = -1.0
    aborted: bool = False
    begins: int = 0
    ends: int = 0
    taken: int = 0
    told: bool = False
    kv_usage: float = 0.0
    stamps: list[float] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether nothing more will be computed."""
        return self.aborted or self.ended >= 0

    def pull(self) -> list[tuple[float, int]]:
        """Return what came since the last call: (seconds since this request arrived, tokens)."""
        if self.first < 0 or self.rank is None:
            return []
        out: list[tuple[float, int]] = []
        if not self.told:
            self.told = True
            out.append((self.first - self.arrived, 1))
        gains = self.rank.gains
        left = self.output - 1 - sum_gains(gains, self.taken)
        fresh = self.rank.stamps[self.begins + self.taken : self.ends] if self.ended < 0 else self.stamps[self.taken :]
        for step, stamp in enumerate(fresh, self.taken):
            gain = min(left, gains[step % len(gains)])
            left -= gain
            out.append((stamp - self.arrived, gain))
        self.taken += len(fresh)
        return out


@dataclass(slots=True)
class Totals:
    """What a rank has counted since it started; histograms are kept by who watches `on_first` and `on_end`."""

    queried: int = 0
    hit: int = 0
    remote: int = 0
    prompt: int = 0
    computed: int = 0
    generated: int = 0
    steps: int = 0
    drafts: int = 0
    accepted: list[int] = field(default_factory=list)


class Rank:
    """One engine rank: a queue, a batch, a pool."""

    def __init__(
        self, index: int, speed: Speed, pool: Pool, *, chunk: int, cap: int, mixed: bool, gains: tuple[int, ...] = (1,)
    ) -> None:
        self.index = index
        self.speed = speed
        self.pool = pool
        self.chunk = chunk
        self.cap = cap
        self.mixed = mixed
        self.gains = gains
        self.waiting: deque[Sequence] = deque()
        self.filling: list[Sequence] = []
        self.decoding: set[Sequence] = set()
        self.stamps: list[float] = []
        self.totals = Totals(accepted=[0] * max(0, max(gains) - 1))
        self.began_at = 0.0
        self.ends_at = NEVER
        self.share_lie = 0.0
        self.watch: Watch = Watch()
        self._chunks: list[tuple[Sequence, int]] = []
        self._decodes = False
        self._context = 0
        self._ends: list[tuple[int, int, Sequence]] = []
        self._ids = count()

    @property
    def load(self) -> int:
        """vLLM's balancing figure: a waiting request weighs four running ones."""
        return 4 * len(self.waiting) + len(self.filling) + len(self.decoding)

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self.filling) + len(self.decoding)

    def begin(self, now: float) -> None:
        """Decide the next step at a moment; nothing to do leaves the rank idle."""
        self._admit(now)
        if not self.running:
            self.stamps = []
            self.ends_at = NEVER
            return
        cost = self._plan_chunks()
        self._decodes = bool(self.decoding) and (self.mixed or not self._chunks)
        if self._decodes:
            cost += self.speed.decode(len(self.decoding), self._context)
        self.began_at, self.ends_at = now, now + cost

    def finish_step(self) -> list[Sequence]:
        """Apply the step that ends now; return the sequences that are complete."""
        now, ended = self.ends_at, []
        self.totals.steps += 1
        if self._decodes:
            ended += self._decode(now)
        for seq, size in self._chunks:
            if seq.aborted:
                continue
            seq.computed += size
            self.totals.computed += size
            self.watch.chunk(self, seq, size, now)
            if seq.computed == seq.tokens:
                self.filling.remove(seq)
                if self._first(seq, now):
                    ended.append(seq)
        return ended

    def abort(self, seq: Sequence, now: float) -> None:
        """Drop a sequence wherever it is; its place is free for the next step."""
        seq.aborted = True
        if seq in self.decoding:
            self.decoding.discard(seq)
            self._context -= seq.tokens + 1 + len(self.stamps) - seq.begins
        elif seq in self.filling:
            self.filling.remove(seq)
        elif seq in self.waiting:
            self.waiting.remove(seq)
            return
        self._leave(seq, b"")
        self.watch.end(self, seq, now)

    def _admit(self, now: float) -> None:
        while self.waiting and self.running < self.cap:
            seq = self.waiting[0]
            got = self.pool.admit(seq.prompt, seq.tokens + seq.output, seq.salt)
            if got is None:
                return
            self.waiting.popleft()
            seq.node, found = got
            seq.reserved = self.pool.room(seq.tokens + seq.output - found)
            lie = int(self.share_lie * seq.tokens) // self.pool.page * self.pool.page
            seq.cached = seq.computed = max(found, lie)
            if seq.remote:
                self.totals.remote += seq.tokens - 1 - seq.computed
                seq.computed = seq.tokens - 1
            seq.admitted = now
            self.totals.queried += seq.tokens if self.pool.caching else 0
            self.totals.hit += seq.cached
            self.totals.prompt += seq.tokens
            self.filling.append(seq)

    def _plan_chunks(self) -> float:
        budget = self.chunk - (len(self.decoding) if self.mixed else 0)
        self._chunks, cost = [], 0.0
        for seq in self.filling:
            size = min(budget, seq.tokens - seq.computed)
            if size <= 0:
                break
            self._chunks.append((seq, size))
            cost += self.speed.prefill(seq.computed, seq.computed + size)
            budget -= size
        return cost

    def _decode(self, now: float) -> list[Sequence]:
        self.stamps.append(now)
        reached = len(self.stamps)
        self._context += len(self.decoding)
        self.watch.decode(self, len(self.decoding), now)
        ended = []
        while self._ends and self._ends[0][0] <= reached:
            _, _, seq = heapq.heappop(self._ends)
            if seq not in self.decoding:
                continue
            self.decoding.discard(seq)
            self._context -= seq.tokens + (seq.ends - seq.begins) + 1
            self._end(seq, now)
            ended.append(seq)
        return ended

    def _first(self, seq: Sequence, now: float) -> bool:
        """The first token is there; return whether it is also the last."""
        assert seq.node is not None
        seq.first = now
        seq.node, seq.reserved = self.pool.commit(seq.prompt, seq.node, seq.reserved, seq.salt)
        seq.kv_usage = self.pool.used / max(1, self.pool.capacity)
        self.watch.first(self, seq, now)
        if seq.output <= 1:
            self._end(seq, now)
            return True
        seq.begins = len(self.stamps)
        seq.ends = seq.begins + steps_for(self.gains, seq.output - 1)
        self.decoding.add(seq)
        self._context += seq.tokens + 1
        heapq.heappush(self._ends, (seq.ends, next(self._ids), seq))
        return False

    def _end(self, seq: Sequence, now: float) -> None:
        seq.ended = now
        seq.stamps = self.stamps[seq.begins : seq.ends] if seq.ends else []
        self.totals.generated += seq.output
        if len(self.gains) > 1 or self.gains[0] > 1:
            self._count_drafts(seq)
        self._leave(seq, seq.output_ids)
        self.watch.end(self, seq, now)

    def _leave(self, seq: Sequence, output: bytes) -> None:
        if seq.node is None:
            return
        if output:
            seq.node, seq.reserved = self.pool.commit(seq.prompt + output, seq.node, seq.reserved, seq.salt)
        self.pool.release(seq.node, seq.reserved)
        seq.node, seq.reserved = None, 0

    def _count_drafts(self, seq: Sequence) -> None:
        steps = seq.ends - seq.begins
        self.totals.drafts += steps
        for step in range(steps):
            for place in range(self.gains[step % len(self.gains)] - 1):
                self.totals.accepted[place] += 1


class Watch:
    """What may be noted as it happens: log lines and histograms. Does nothing by itself."""

    def chunk(self, rank: Rank, seq: Sequence, size: int, now: float) -> None:
        """A chunk of a prompt was computed."""

    def decode(self, rank: Rank, sequences: int, now: float) -> None:
        """A decode step ended."""

    def first(self, rank: Rank, seq: Sequence, now: float) -> None:
        """A sequence has its first token."""

    def end(self, rank: Rank, seq: Sequence, now: float) -> None:
        """A sequence ended or was aborted."""


def steps_for(gains: tuple[int, ...], tokens: int) -> int:
    """Return how many decode steps give at least that many tokens."""
    whole, rest = divmod(tokens, sum(gains))
    steps = whole * len(gains)
    for gain in gains:
        if rest <= 0:
            break
        rest -= gain
        steps += 1
    return steps


def sum_gains(gains: tuple[int, ...], steps: int) -> int:
    """Return how many tokens that many decode steps give."""
    whole, rest = divmod(steps, len(gains))
    return whole * sum(gains) + sum(gains[:rest])


def spread(draft: int, acceptance: tuple[float, ...]) -> tuple[int, ...]:
    """Return a repeating pattern of tokens per step for a number of drafted tokens; (1,) without drafting.

    `acceptance[i]` is the share of steps in which drafted token i is accepted; the pattern spreads them evenly.
    """
    if not draft:
        return (1,)
    period = 20
    rates = [acceptance[min(place, len(acceptance) - 1)] for place in range(draft)]
    pattern = []
    for step in range(period):
        turn = (step * 7 % period + 0.5) / period
        pattern.append(1 + sum(turn < rate for rate in rates))
    return tuple(pattern)
