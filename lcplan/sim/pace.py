"""Wall time only paces: the pump lets the virtual clock run `speed` times faster than the wall's, and waits for clients.

A client that measures closed loops says, per request, when it sent it on its own virtual clock (`x-lcplan-sent`). Such
requests arrive at that moment, not at the wall's, so the same workload gives the same stamps however slow the machine is.
The virtual clock then stands still

- until as many of them are in flight as the client says belong to its load (`x-lcplan-users: N`, less those whose
  request said `x-lcplan-last: 1`: their user sends no other one), at most `PATIENCE`;
- without that header, for a short grace after each of their arrivals and ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from lcplan.sim.schedule import NEVER, Engine, Sequence

TICK = 0.02  # seconds of wall time between two sends of a stream
PATIENCE = 2.0
GRACE_ARRIVAL = 0.005
GRACE_BYTE = 40e-9  # clients take about that long to write a byte of their next prompt
GRACE_END = 0.01
NEW_CLOCK = 1.0  # virtual seconds by which a client's clock may be behind before it counts as another client


class Pump:
    """Drives an engine in wall time."""

    def __init__(self, engine: Engine, speed: float) -> None:
        self.engine = engine
        self.speed = speed
        self.hung = False
        self._base = (time.monotonic(), 0.0)
        self._offset: float | None = None
        self._users = 0
        self._gone = 0
        self._inbound = 0
        self._grace_until = 0.0
        self._patience_until = 0.0
        self._woken = asyncio.Event()

    def now(self) -> float:
        """Return the virtual moment that the wall clock stands for."""
        wall, virtual = self._base
        return virtual + (time.monotonic() - wall) * self.speed

    @contextmanager
    def inbound(self) -> Iterator[None]:
        """Keep the virtual clock still while the body of a request with its own clock is read."""
        self._inbound += 1
        try:
            yield
        finally:
            self._inbound -= 1
            self._woken.set()

    def arrival(self, sent: float | None) -> float:
        """Return the virtual moment at which a request arrives that was sent at a moment of its client's clock."""
        engine = self.engine
        if sent is None:
            at = max(engine.now, self.now())
        else:
            if self._offset is None or (not engine.busy and sent + self._offset < engine.now - NEW_CLOCK):
                self._offset = engine.now - sent
            at = max(engine.now, sent + self._offset)
        if not engine.busy:
            self._rebase(at)
        return at

    def submit(self, sequences: list[Sequence], users: int | None, size: int) -> None:
        """Hand the sequences of one request, whose body had that many bytes, to the engine."""
        for seq in sequences:
            self.engine.submit(seq)
        if any(seq.follows for seq in sequences):
            self._belongs(users or 0)
            self._grace_until = time.monotonic() + GRACE_ARRIVAL + GRACE_BYTE * size
        self._woken.set()

    def abort(self, seq: Sequence) -> None:
        """Drop a request whose client has gone."""
        if seq.follows and not seq.done:
            self._gone += 1
        self.engine.abort(seq)
        self._woken.set()

    async def run(self) -> None:
        """Pace for ever."""
        while True:
            if self.hung or not self.engine.busy:
                await self._wait(None)
                continue
            held = self._held()
            if held:
                await self._wait(held)
                self._rebase(self.engine.now)
                continue
            ended = self.engine.advance(self.now())
            if ended:
                self._rebase(self.engine.now)
                self._gone += sum(seq.last for seq in ended)
                self._grace_until = time.monotonic() + GRACE_END
                self._patience_until = time.monotonic() + PATIENCE
                await asyncio.sleep(0)
                continue
            await self._wait(self._pause())

    def _pause(self) -> float:
        moment = self.engine.next_moment()
        if moment == NEVER:
            return TICK
        return min(TICK, max(0.001, (moment - self.now()) / self.speed))

    def _belongs(self, users: int) -> None:
        """A request of a load of that many users has come."""
        if users != self._users or self._gone >= users:
            self._users, self._gone = users, 0
        self._patience_until = time.monotonic() + PATIENCE

    def _held(self) -> float:
        """The seconds of wall time for which the virtual clock may have to stand still; 0 when it runs."""
        wall = time.monotonic()
        if self._inbound:
            return PATIENCE
        expected = self._users - self._gone
        if expected > 0:
            if self.engine.following >= expected:
                return 0.0
            if wall < self._patience_until:
                return self._patience_until - wall
            self._users = self._gone = 0
        elif self._users:
            return 0.0
        return max(0.0, self._grace_until - wall)

    def _rebase(self, virtual: float) -> None:
        self._base = (time.monotonic(), virtual)

    async def _wait(self, seconds: float | None) -> None:
        self._woken.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass
