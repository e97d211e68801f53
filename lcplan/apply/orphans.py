"""Servers that carry lcplan's labels and whose owner is gone; nothing without the labels is ever looked at twice.

The owner of a server is its state directory: it accounts for a server while an apply holds its lock, and for serve
entries as long as they stand in its state. One on another machine can't be asked, so its servers are left alone.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lcplan.apply.events import Sink
from lcplan.apply.recover import GRACE_S, RUNTIMES_WITH_LABELS, recover
from lcplan.base.diagnostics import LcplanError
from lcplan.record import lock
from lcplan.record import state as states
from lcplan.runtime import get as runtime_of
from lcplan.runtime.base import Found

Owner = Literal["gone", "elsewhere", "alive"]


@dataclass(frozen=True)
class Orphan:
    """A labelled server without a live owner. `elsewhere`: its state directory is on another machine."""

    found: Found
    owner: Owner

    def as_json(self) -> dict[str, Any]:
        """Return the shape that `state orphans --json` prints."""
        return {
            "run": self.found.run,
            "lineage": self.found.lineage,
            "runtime": self.found.handle["runtime"],
            "what": self.found.what,
            "state": self.found.state or None,
            "owner": self.owner,
        }


def orphans() -> list[Orphan]:
    """Return the labelled servers of this machine and of its Docker engine that no live owner accounts for."""
    return [Orphan(found, owner) for found in _labelled() if (owner := _owner(found)) != "alive"]


def remove(root: Path, some: Sequence[Orphan], wait: bool, sink: Sink) -> list[Orphan]:
    """End the orphans whose owner is gone, and return them; what a killed apply had measured is sealed first.

    Raises LcplanError `state-locked` when an apply of this state directory began meanwhile.
    """
    gone = [one for one in some if one.owner == "gone"]
    if root.is_dir():
        with lock.hold(root, "lcplan state orphans", wait):
            recover(root, sink)
    for one in gone:
        sink({"event": "orphan", "run": one.found.run, "what": one.found.what})
        runtime_of(one.found.handle["runtime"]).stop(_with_log(one.found), GRACE_S)
    return gone


def _labelled() -> Iterator[Found]:
    for name in RUNTIMES_WITH_LABELS:
        # An engine that does not answer shows nothing.
        with suppress(LcplanError):
            yield from runtime_of(name).find(None)


def _owner(found: Found) -> Owner:
    host, _, folder = found.state.partition(":")
    if not folder:
        return "gone"
    if host != platform.node():
        return "elsewhere"
    root = Path(folder)
    with suppress(OSError, LcplanError):
        state, _ = states.load(root)
        if state is None or state.lineage != found.lineage:
            return "gone"
        if lock.holder(root) is not None or any(e.get("run") == found.run for e in state.serves.values()):
            return "alive"
    return "gone"


def _with_log(found: Found) -> dict[str, Any]:
    """Return the handle with the place of its log, where the folder of the run is still being written."""
    staging = Path(found.state.partition(":")[2]) / "staging" / found.run
    return {**found.handle, "log": str(staging / found.log)} if found.state and staging.is_dir() else found.handle
