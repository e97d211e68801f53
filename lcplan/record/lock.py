"""The state lock: flock on `state/lock`, held for a whole apply and freed by the kernel when its holder dies.

Machines that share a state directory are told apart by the host that is written into the file.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from lcplan.base.diagnostics import fail

_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds the lock, as written in the file. `started` is UTC, `command` the command line."""

    purpose: str
    pid: int
    host: str
    user: str
    started: str
    command: str

    def __str__(self) -> str:
        return f"`{self.purpose}` (process {self.pid} on {self.host}, user {self.user}, since {self.started})"


_UNKNOWN = Holder("another lcplan", 0, "unknown host", "unknown", "just now", "")
"""Who holds the lock between taking it and writing that down."""


@contextmanager
def hold(root: Path, purpose: str, wait: bool | float = False) -> Iterator[Holder]:
    """Hold the lock inside a `with` block. `wait`: False leaves at once, True waits, a number waits that many seconds.

    Raises LcplanError `state-locked`, which names the holder.
    """
    root.mkdir(parents=True, exist_ok=True)
    # Not inherited by children: a server that outlives its apply must not keep the lock.
    handle = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with os.fdopen(handle, "r+") as file:
        _acquire(root, file, time.monotonic() + wait if wait is not True else None)
        me = _myself(purpose)
        _write(file, json.dumps(asdict(me)))
        try:
            yield me
        finally:
            _write(file, "")


def holder(root: Path) -> Holder | None:
    """Return who holds the lock now, None when nobody does."""
    try:
        with (root / "lock").open("r+") as file:
            return _take(file)
    except FileNotFoundError:
        return None


def _acquire(root: Path, file: IO[str], deadline: float | None) -> None:
    while True:
        other = _take(file)
        if other is None:
            return
        if deadline is not None and time.monotonic() >= deadline:
            here = other.host in (socket.gethostname(), _UNKNOWN.host)
            hint = "wait for it with --wait, or stop it: the lock goes when its holder does" if here else \
                f"see on {other.host} that it has ended; if it was killed there, remove {root / 'lock'}"  # fmt: skip
            raise fail("state-locked", f"the state in {root} is held by {other}", hint)
        time.sleep(_POLL_S)


def _take(file: IO[str]) -> Holder | None:
    """Lock the file and return None, or return who holds it.

    Not every shared file system tells one machine of the locks of another, so a holder that is written down counts when
    it is on another machine; one on this machine that let the lock go is dead.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(file) or _UNKNOWN
    left = _read(file)
    if left is None or left.host == socket.gethostname():
        return None
    fcntl.flock(file, fcntl.LOCK_UN)
    return left


def _myself(purpose: str) -> Holder:
    return Holder(
        purpose=purpose,
        pid=os.getpid(),
        host=socket.gethostname(),
        user=_user(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        command=shlex.join(sys.argv),
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        return str(os.getuid())


def _read(file: IO[str]) -> Holder | None:
    file.seek(0)
    try:
        return Holder(**json.loads(file.read()))
    except (ValueError, TypeError):
        return None


def _write(file: IO[str], text: str) -> None:
    file.seek(0)
    file.truncate()
    file.write(text)
    file.flush()
