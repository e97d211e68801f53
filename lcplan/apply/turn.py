"""Starts on one node one after the other, up to the memory profile: two at once mis-measure the memory that is free."""

from __future__ import annotations

import asyncio


class Turn:
    """A launch's turn at starting on its node. `take` and `give` may be called again without harm."""

    def __init__(self, lock: asyncio.Lock) -> None:
        self._lock = lock
        self.taken = False

    async def take(self, give_up: asyncio.Event) -> None:
        """Wait until no other launch of the node is before its memory profile, or until `give_up` is set."""
        if self.taken:
            return
        lock, stop = asyncio.ensure_future(self._lock.acquire()), asyncio.ensure_future(give_up.wait())
        await asyncio.wait({lock, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        self.taken = lock.done()
        if not self.taken:
            lock.cancel()

    def give(self) -> None:
        """Let the next launch start."""
        if self.taken:
            self.taken = False
            self._lock.release()
