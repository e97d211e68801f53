"""Who else ran on the node while a cell was measured: bandwidth, power and caches are shared, so the record says it."""

from __future__ import annotations


class Neighbours:
    """The runs of one node, as they come and go."""

    def __init__(self) -> None:
        self._here: set[str] = set()
        self._seen: dict[str, set[str]] = {}

    def arrive(self, run: str) -> None:
        """Note that a run began."""
        self._here.add(run)
        for seen in self._seen.values():
            seen.add(run)

    def leave(self, run: str) -> None:
        """Note that a run ended."""
        self._here.discard(run)

    def watch(self, run: str) -> None:
        """Begin to note a run's neighbours."""
        self._seen[run] = self._here - {run}

    def seen(self, run: str) -> list[str]:
        """Return who was there since `watch`."""
        return sorted(self._seen.pop(run, set()) - {run})
