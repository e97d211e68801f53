"""A container's output in a file: followed while it runs, completed from the daemon's own log before it is removed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from docker import APIClient

LIMIT = 256 * 1024 * 1024
"""Bytes of a log that are kept; the daemon's own limit is below."""
_RETRY_S = 0.5
_JOIN_S = 5.0


class Follower:
    """Copies a container's output into a file in a thread of its own, and goes on after errors of the connection."""

    def __init__(self, connect: Callable[[], APIClient], container: str, log: Path) -> None:
        self._connect, self._container, self._log = connect, container, log
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"log of {container[:12]}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait a little for what is still on its way, then stop."""
        self._thread.join(_JOIN_S)
        self._over.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        from docker.errors import NotFound

        while not self._over.is_set():
            try:
                api = self._connect()
                self._copy(api)
                if not api.inspect_container(self._container)["State"]["Running"]:
                    return
            except NotFound:
                return
            except Exception:
                # Whatever broke (the daemon restarts, a read times out), the log is completed in the end.
                pass
            self._over.wait(_RETRY_S)

    def _copy(self, api: APIClient) -> None:
        """Append what the file does not have yet: the daemon always tells the log from its start."""
        have = self._log.stat().st_size
        seen = 0
        with self._log.open("ab", buffering=0) as file:
            for block in _output(api, self._container, follow=True):
                if self._over.is_set() or have + len(block) > LIMIT:
                    return
                fresh = block[max(0, have - seen) :]
                seen += len(block)
                if fresh:
                    file.write(fresh)
                    have += len(fresh)


def complete(api: APIClient, container: str, log: Path) -> None:
    """Write the whole output of an ended container over a log that may lack parts. Raises OSError.

    A log that is longer than what the daemon still has stays as it is.
    """
    part = log.with_name(f"{log.name}.part")
    try:
        size = 0
        with part.open("wb") as file:
            for block in _output(api, container, follow=False):
                if size + len(block) > LIMIT:
                    break
                file.write(block)
                size += len(block)
        if not log.exists() or size >= log.stat().st_size:
            part.replace(log)
    finally:
        part.unlink(missing_ok=True)


def _output(api: APIClient, container: str, *, follow: bool) -> Iterator[bytes]:
    blocks: Any = api.logs(container, stdout=True, stderr=True, stream=True, follow=follow)
    return iter(blocks)
