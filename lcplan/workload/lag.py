"""How late the client's own event loop runs: what it adds to every time it measures."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from lcplan.workload.stats import quantile

_BEAT_S = 0.005
_MIN_BEATS = 20
_MAX_BEATS = 100_000


class Lag:
    """Samples of the event loop's lateness, in ms."""

    def __init__(self) -> None:
        self._late: list[float] = []

    def add(self, late_ms: float) -> None:
        """Take a sample; of a very long measurement only the first ones are kept."""
        if len(self._late) < _MAX_BEATS:
            self._late.append(max(0.0, late_ms))

    @property
    def p90_ms(self) -> float | None:
        """The 90th percentile, None for a measurement too short to have one."""
        return quantile(sorted(self._late), 0.9) if len(self._late) >= _MIN_BEATS else None


@contextlib.asynccontextmanager
async def beating() -> AsyncIterator[Lag]:
    """Sample the loop's lateness while the body runs."""
    lag = Lag()
    task = asyncio.create_task(_beat(lag))
    try:
        yield lag
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _beat(lag: Lag) -> None:
    while True:
        due = time.perf_counter() + _BEAT_S
        await asyncio.sleep(_BEAT_S)
        lag.add((time.perf_counter() - due) * 1e3)
