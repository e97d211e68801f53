"""Wall time only paces: the virtual clock runs `speed` times faster than the wall's, and waits for clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from lcplan.sim.hold import PATIENCE, Hold
from lcplan.sim.rank import NEVER, Sequence
from lcplan.sim.schedule import Engine

TICK = 0.02  # seconds of wall time between two sends of a stream
NEW_CLOCK = 1.0  # virtual seconds by which a client's clock may be behind before it counts as another client's


class Pump:
    """Drives an engine in wall time."""

    def __init__(self, engine: Engine, speed: float) -> None:
        self.engine = engine
        self.speed = speed
        self.hung = False
        self._hold = Hold()
        self._base = (time.monotonic(), 0.0)
        self._offset: float | None = None
        self._inbound = 0
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

    def submit(self, sequences: list[Sequence], users: int, size: int) -> None:
        """Hand the sequences of one request to the engine; its body had that many bytes, its load that many users."""
        for seq in sequences:
            self.engine.submit(seq)
        if any(seq.follows for seq in sequences):
            self._hold.arrived(self.engine.following, users, size)
        self._woken.set()

    def abort(self, seq: Sequence) -> None:
        """Drop a request whose client has gone."""
        if seq.done:
            return
        self.engine.abort(seq)
        if seq.follows:
            self._hold.ended(1)
        self._woken.set()

    async def run(self) -> None:
        """Pace for ever."""
        while True:
            if self.hung or not self.engine.busy:
                await self._wait(None)
                continue
            held = PATIENCE if self._inbound else self._hold.left(self.engine.following)
            if held:
                await self._wait(held)
                self._rebase(self.engine.now)
                continue
            ended = self.engine.advance(self.now())
            if not ended:
                await self._wait(self._pause())
                continue
            self._rebase(self.engine.now)
            self._hold.ended(sum(seq.last for seq in ended))
            await asyncio.sleep(0)

    def _pause(self) -> float:
        moment = self.engine.next_moment()
        if moment == NEVER:
            return TICK
        return min(TICK, max(0.001, (moment - self.now()) / self.speed))

    def _rebase(self, virtual: float) -> None:
        self._base = (time.monotonic(), virtual)

    async def _wait(self, seconds: float | None) -> None:
        self._woken.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
