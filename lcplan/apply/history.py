"""What earlier runs tell of launches to come: pools, laws, loading times, durations. Read only when asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lcplan.base.diagnostics import LcplanError
from lcplan.record import ledger, manifest

if TYPE_CHECKING:
    from lcplan.capacity.fit import Law
    from lcplan.capacity.pool import Past
    from lcplan.plan.model import Launch
    from lcplan.record.state import CellRecord

_LOOK = 12
"""Runs of a stack (variant) that are looked at, newest first."""
_READ = 48
"""Manifests that are read to find them: real and simulated runs lie in one folder."""
_KEEP = 5
"""Runs whose pools are taken together."""

_CACHED = 64


class History:
    """The sealed runs of a state directory, real or simulated, as far as they were asked for."""

    def __init__(self, root: Path, simulated: bool, cells: Mapping[str, CellRecord]) -> None:
        self._root, self._simulated, self.cells = root, simulated, cells
        self._by_stack: dict[str, list[str]] | None = None
        self.predicate = lru_cache(_CACHED)(self._read)
        self.durations: Mapping[str, float] = Durations(self)
        self.loads: Mapping[str, float] = Loads(self)

    def past(self, launch: Launch) -> Past | None:
        """Return what runs of the same command line logged, else those of the same stack with other settings."""
        from lcplan.capacity.pool import Past

        alike = [body for body in self.of_stack(launch.stack, launch.variant) if _alike(body, launch)]
        usable = [body for body in alike if _pool(body)]
        same = [body for body in usable if body.get("fingerprint") == launch.digest]
        chosen = (same or usable)[:_KEEP]
        if not chosen:
            return None
        logged = chosen[0]["capacity"]["logged"]
        return Past(
            runs=tuple(body["run"] for body in chosen),
            pools=tuple(_pool(body) for body in chosen),
            exact=bool(same),
            concurrency=logged.get("concurrency"),
            max_model_len=logged.get("max_model_len"),
            cap=logged.get("cap") if logged.get("cap_source") == "logged" else None,
            ratios=tuple(_pool(body) / said for body in chosen if (said := _predicted(body))),
            law=_law(alike, launch.context or logged.get("max_model_len")),
        )

    def of_stack(self, stack: str, variant: str | None) -> Iterator[dict[str, Any]]:
        """Yield the predicates of a stack's newest runs of this kind without retracted ones.

        Those of the variant come first, then those of the others; each newest first, and only so many are read.
        """
        if self._by_stack is None:
            self._by_stack = self._sorted()
        runs = self._by_stack.get(stack, [])
        own = [run for run in runs if _variant(run) == variant]
        for some in (own, [run for run in runs if _variant(run) != variant]):
            read = (body for run in some[:_READ] if (body := self.predicate(run)) is not None)
            yield from islice((body for body in read if bool(body["simulated"]) is self._simulated), _LOOK)

    def _read(self, run: str) -> dict[str, Any] | None:
        """Return what a run's manifest says, None when it can't be read."""
        try:
            body: dict[str, Any] = manifest.read(self._root, run)["predicate"]
        except LcplanError:
            return None
        return body

    def _sorted(self) -> dict[str, list[str]]:
        """Return the runs by stack, which their ids begin with, newest first."""
        entries = ledger.readable(self._root)
        place = {entry.run: entry.seq for entry in entries}
        gone = ledger.retracted(self._root)
        made: dict[str, list[str]] = {}
        for run in sorted(manifest.list_runs(self._root), key=lambda run: (place.get(run, 0), run), reverse=True):
            if run not in gone:
                made.setdefault(run.split("__", 1)[0], []).append(run)
        return made


class Durations(Mapping[str, float]):
    """Seconds that recorded cells took, by fingerprint and by `<run>/<cell>`; virtual ones of a simulated run."""

    def __init__(self, history: History) -> None:
        self._history = history

    def __getitem__(self, key: str) -> float:
        run, _, name = key.rpartition("/")
        if not run:
            run, name, _ = self._history.cells[key]
        body = self._history.predicate(run) if run else None
        for cell in (body or {}).get("cells", ()):
            if cell["cell"] == name and (seconds := _seconds(cell)):
                return seconds
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._history.cells)

    def __len__(self) -> int:
        return len(self._history.cells)


class Loads(Mapping[str, float]):
    """Seconds from start to ready of a stack's newest run that became ready, by stack.

    A simulated server loads nothing: how long its process took to start says nothing of the engine's virtual time.
    """

    def __init__(self, history: History) -> None:
        self._history = history

    def __getitem__(self, stack: str) -> float:
        for body in self._history.of_stack(stack, None):
            times = body.get("times") or {}
            if not body.get("simulated") and "started" in times and "ready" in times:
                return _between(times["started"], times["ready"])
        raise KeyError(stack)

    def __iter__(self) -> Iterator[str]:
        return iter({run.split("__", 1)[0] for run, _, _ in self._history.cells.values() if run})

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _variant(run: str) -> str | None:
    """Return the variant that a run id names: `<stack>__<layout>__<ctx>k__<engine kind>[__<variant>]__<stamp>`."""
    parts = run.split("__")
    return parts[4] if len(parts) == 6 else None


def _alike(body: Mapping[str, Any], launch: Launch) -> bool:
    engine = body.get("engine") or {}
    return (
        (body.get("model") or {}).get("name") == launch.model
        and (engine.get("kind"), engine.get("version")) == (launch.kind, launch.version)
        and body.get("layout") == launch.layout
    )


def _pool(body: Mapping[str, Any]) -> int:
    """Return the logged pool, 0 for none or for one that held no request of its context: such a start had failed."""
    logged = (body.get("capacity") or {}).get("logged") or {}
    tokens = logged.get("pool_tokens") or 0
    return 0 if tokens < (logged.get("max_model_len") or 0) else int(tokens)


def _predicted(body: Mapping[str, Any]) -> int | None:
    return ((body.get("capacity") or {}).get("predicted") or {}).get("pool_tokens")


def _law(bodies: list[dict[str, Any]], context: int | None) -> Law | None:
    """Return the law of all readings at this max-model-len."""
    from lcplan.capacity.fit import Sample, fit_law

    laws = [(body.get("capacity") or {}).get("law") or {} for body in bodies]
    samples = [Sample(**one) for law in laws if law.get("max_model_len") == context for one in law["samples"]]
    return fit_law(samples, context)


def _seconds(cell: Mapping[str, Any]) -> float | None:
    if cell["status"] not in ("done", "invalid") or "started" not in cell:
        return None
    virtual = cell.get("virtual_s")
    return float(virtual) if virtual else _between(cell["started"], cell["ended"])


def _between(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
