"""When the virtual clock has to stand still for clients that measure closed loops.

Such a client says per request when it sent it on its own virtual clock (`x-lcplan-sent`). Requests that belong together
must all be there before the engine goes on, however slow the machine is, else the same workload gives other stamps.

Told: `x-lcplan-users: N` says how many users the load has, `x-lcplan-last: 1` that a user sends nothing after this
request. The clock stands until N, less those users, are in flight. Not told: the most that were in flight is taken for
N, and a user who does not follow soon is taken to be finished.
"""

from __future__ import annotations

import time

PATIENCE = 2.0  # seconds of wall time for which a client that told its users is waited for
GROWTH = 0.015  # ... for another request while a load that told nothing still grows
GROWTH_BYTE = 40e-9  # ... and per byte of a request, since its siblings take their client about that long to write
FOLLOW = 0.06  # ... for the next request of a user who told nothing
FOLLOW_TAIL = 0.01  # ... once a user has not followed


class Hold:
    """Counts users of the load that runs, told or guessed."""

    def __init__(self) -> None:
        self._users = 0
        self._gone = 0
        self._told = False
        self._tail = False
        self._grows_until = 0.0
        self._until = 0.0

    def arrived(self, following: int, users: int, size: int) -> None:
        """A request of so many bytes has come; now `following` are in flight. `users` is 0 when not told."""
        wall = time.monotonic()
        self._told = users > 0
        if self._told:
            if users != self._users or self._gone >= users:
                self._users, self._gone = users, 0
            self._until = wall + PATIENCE
        elif following == 1 or following > self._users - self._gone:
            self._users, self._gone, self._tail = following, 0, False
            self._grows_until = wall + GROWTH + GROWTH_BYTE * size
        else:
            self._tail = False

    def ended(self, last: int) -> None:
        """Requests have ended; `last` of them were their users' last ones."""
        self._gone += last if self._told else 0
        self._until = time.monotonic() + (PATIENCE if self._told else FOLLOW_TAIL if self._tail else FOLLOW)

    def left(self, following: int) -> float:
        """Return the seconds of wall time for which the clock stands still at most, 0 when it may run."""
        wall = time.monotonic()
        if not self._told and wall < self._grows_until:
            return self._grows_until - wall
        if following >= self._users - self._gone:
            return 0.0
        if wall < self._until:
            return self._until - wall
        self._users, self._gone, self._tail = following, 0, True
        return 0.0
