"""The ranks of one server behind its load balancer, in virtual seconds, deterministic. Nothing here knows wall time."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count

from lcplan.sim.rank import NEVER, Rank, Sequence


class Engine:
    """The ranks of one server. `advance(until)` computes every step that ends by then; `now` never goes back."""

    def __init__(self, ranks: list[Rank], latency: float) -> None:
        self.ranks = ranks
        self.latency = latency
        self.now = 0.0
        self._coming: list[tuple[float, str, int, Sequence]] = []
        self._ids = count()

    @property
    def busy(self) -> bool:
        """Whether any request is somewhere in the engine."""
        return bool(self._coming) or any(rank.running or rank.waiting for rank in self.ranks)

    @property
    def following(self) -> int:
        """Requests in flight whose clients report their own clock."""
        coming = sum(seq.follows for _, _, _, seq in self._coming)
        return coming + sum(seq.follows for rank in self.ranks for seq in _all(rank))

    def submit(self, seq: Sequence) -> None:
        """Take a request that arrives at `seq.arrived` (now or later)."""
        heapq.heappush(self._coming, (seq.arrived + self.latency, seq.order, next(self._ids), seq))

    def abort(self, seq: Sequence) -> None:
        """Drop a request whose client has gone."""
        if seq.done:
            return
        self._coming = [entry for entry in self._coming if entry[3] is not seq]
        heapq.heapify(self._coming)
        if seq.rank is None:
            seq.aborted = True
            return
        seq.rank.abort(seq, self.now)

    def abort_all(self) -> None:
        """Drop every request."""
        for seq in [*(entry[3] for entry in self._coming), *(seq for rank in self.ranks for seq in _all(rank))]:
            self.abort(seq)
            seq.wake()

    def advance(self, until: float) -> list[Sequence]:
        """Compute up to a moment; stop early where a request ends whose client may follow with another one.

        Returns those requests; every sequence that has something new is woken.
        """
        stopped: list[Sequence] = []
        while True:
            at, rank = self._next()
            if at > until or (stopped and at > self.now):
                break
            self.now = max(self.now, at)
            if rank is None:
                self._arrive()
                continue
            ended = rank.finish_step()
            rank.begin(self.now)
            stopped += [seq for seq in ended if seq.follows]
            for seq in ended:
                seq.wake()
        if not stopped and self.busy:
            self.now = max(self.now, min(until, self._next()[0]))
        self._wake()
        return stopped

    def next_moment(self) -> float:
        """Return when something worth sending happens next: an estimate that is never too late."""
        at = self._coming[0][0] if self._coming else NEVER
        for rank in self.ranks:
            if rank.ends_at < at:
                at = rank.ends_at
        return at

    def _next(self) -> tuple[float, Rank | None]:
        at: float = self._coming[0][0] if self._coming else NEVER
        chosen = None
        for rank in self.ranks:
            if rank.ends_at < at:
                at, chosen = rank.ends_at, rank
        return at, chosen

    def _arrive(self) -> None:
        while self._coming and self._coming[0][0] <= self.now:
            seq = heapq.heappop(self._coming)[3]
            seq.rank = min(self.ranks, key=lambda rank: (rank.load, rank.index))
            seq.rank.waiting.append(seq)
        for rank in self.ranks:
            if rank.ends_at == NEVER and rank.waiting:
                rank.begin(self.now)

    def _wake(self) -> None:
        for rank in self.ranks:
            for seq in rank.decoding:
                seq.wake()


def _all(rank: Rank) -> Iterator[Sequence]:
    yield from list(rank.waiting)
    yield from list(rank.filling)
    yield from list(rank.decoding)
