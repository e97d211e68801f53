"""Writing log lines: at once, to the stream that the engine uses, with times that are virtual."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import datetime, timedelta

NOTICE = "lcplan simulator: every number of this server is simulated"


class Log:
    """Lines of one server. `elapsed` returns the virtual seconds since the process began."""

    def __init__(self) -> None:
        self._began = datetime.fromtimestamp(time.time())
        self._script = 0.0
        self.elapsed: Callable[[], float] = lambda: self._script

    def pass_time(self, seconds: float) -> None:
        """Let virtual time go by while the start-up lines are written."""
        self._script += seconds

    @property
    def started_after(self) -> float:
        """Virtual seconds that the start-up took."""
        return self._script

    def time(self) -> datetime:
        """Return the virtual moment."""
        return self._began + timedelta(seconds=self.elapsed())

    def out(self, text: str) -> None:
        """Write to stdout."""
        _write(1, text)

    def err(self, text: str) -> None:
        """Write to stderr."""
        _write(2, text)


def _write(handle: int, text: str) -> None:
    data = (text + "\n").encode()
    try:
        while data:
            data = data[os.write(handle, data) :]
    except OSError:
        return
