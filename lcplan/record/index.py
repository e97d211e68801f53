"""An index of every recorded figure by value, and of runs by launch: `state/index.sqlite`, not under git.

SQLite and not parquet: one figure is looked up among a million by a process that lives for a tenth of a second, which
is what importing pyarrow alone takes. The index follows the ledger: events that it does not know yet are added when it
is opened, and it is made anew when the ledger is not the one that it was made from.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from lcplan.base.diagnostics import LcplanError
from lcplan.record import ledger, manifest

_FORMAT = 2
_WAIT_S = 30
_SCHEMA = f"""
BEGIN;
DROP TABLE IF EXISTS made; DROP TABLE IF EXISTS runs; DROP TABLE IF EXISTS figures;
CREATE TABLE made (events INTEGER, sha256 TEXT);
CREATE TABLE runs (run TEXT PRIMARY KEY, seq INTEGER, launch TEXT, simulated INTEGER) WITHOUT ROWID;
CREATE TABLE figures (value REAL, text TEXT, run TEXT, cell TEXT, metric TEXT, unit TEXT, status TEXT);
CREATE INDEX by_launch ON runs (launch);
CREATE INDEX by_value ON figures (value);
INSERT INTO made VALUES (0, '{ledger.GENESIS}');
PRAGMA user_version = {_FORMAT};
COMMIT;
"""


class Figure(NamedTuple):
    """One recorded number: `text` is its decimal text, `metric` a metric with its statistic or a path in the manifest.

    `unit` is None where the record names none and the metric's name has to tell.
    """

    text: str
    run: str
    cell: str
    metric: str
    unit: str | None
    status: str


class Index:
    """An open index. Made by `opened`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def between(self, low: Decimal, high: Decimal) -> list[Figure]:
        """Return the figures whose recorded value lies in a range, widened by a hair of binary rounding."""
        margin = (abs(low) + abs(high)) * Decimal("1e-12")
        found = self._connection.execute(
            "SELECT text, run, cell, metric, unit, status FROM figures WHERE value BETWEEN ? AND ?",
            (float(low - margin), float(high + margin)),
        )
        return [Figure(*row) for row in found]

    def places(self, runs: Iterable[str]) -> dict[str, tuple[int, bool]]:
        """Return for each of these runs its place in the ledger and whether it is simulated."""
        ask = "SELECT seq, simulated FROM runs WHERE run = ?"
        found = ((run, self._connection.execute(ask, (run,)).fetchone()) for run in runs)
        return {run: (row[0], bool(row[1])) for run, row in found if row}

    def of_launch(self, launch: str, simulated: bool) -> list[str]:
        """Return the runs of a launch fingerprint, oldest first."""
        ask = "SELECT run FROM runs WHERE launch = ? AND simulated = ? ORDER BY seq"
        return [row[0] for row in self._connection.execute(ask, (launch, simulated))]


@contextmanager
def opened(root: Path) -> Iterator[Index]:
    """Open the index, brought up to date; in memory where the state folder cannot be written."""
    with closing(_current(root)) as connection:
        yield Index(connection)


def figures(predicate: Mapping[str, Any]) -> Iterator[tuple[str, str, float, str | None, str]]:
    """Yield (cell, metric, number, unit, status) for every figure of a run: metrics of cells, then its capacity.

    A statistic that is the value itself (the median, the least of one) is no figure of its own.
    """
    for cell in predicate["cells"]:
        for name, metric in (cell.get("metrics") or {}).items():
            for statistic, number in metric.items():
                if _is_number(number) and statistic != "n" and (statistic == "value" or number != metric.get("value")):
                    path = name if statistic == "value" else f"{name}.{statistic}"
                    yield cell["cell"], path, number, metric.get("unit"), cell["status"]
        for path, number in _leaves("capacity", cell.get("capacity")):
            yield cell["cell"], path, number, None, cell["status"]
    capacity = predicate.get("capacity") or {}
    for part in ("predicted", "logged", "law"):
        for path, number in _leaves(f"capacity.{part}", capacity.get(part)):
            yield "", path, number, None, "done"


def _current(root: Path) -> sqlite3.Connection:
    file = root / "index.sqlite"
    try:
        return _following(str(file), root)
    except sqlite3.OperationalError:  # not writable, or kept busy by another process
        return _following(":memory:", root)
    except sqlite3.DatabaseError:  # no database
        file.unlink()
        return _following(str(file), root)


def _following(name: str, root: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(name, timeout=_WAIT_S, isolation_level=None)
    try:
        _follow(connection, root)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _follow(connection: sqlite3.Connection, root: Path) -> None:
    if connection.execute("PRAGMA user_version").fetchone()[0] != _FORMAT:
        connection.executescript(_SCHEMA)
    if _made(connection) == ledger.head(root):
        return
    if ledger.since(root, *_made(connection)) is None:
        connection.executescript(_SCHEMA)
    connection.execute("BEGIN IMMEDIATE")
    entries, head = ledger.since(root, *_made(connection)) or ([], _made(connection))
    for entry in entries:
        if entry.manifest_sha256:
            _enter(connection, root, entry)
    connection.execute("UPDATE made SET events = ?, sha256 = ?", head)
    connection.execute("COMMIT")


def _made(connection: sqlite3.Connection) -> tuple[int, str]:
    events, sha256 = connection.execute("SELECT events, sha256 FROM made").fetchone()
    return events, sha256


def _enter(connection: sqlite3.Connection, root: Path, entry: ledger.Entry) -> None:
    try:
        predicate = manifest.read(root, entry.run)["predicate"]
        rows = [(float(n), repr(n), entry.run, cell, path, unit, s) for cell, path, n, unit, s in figures(predicate)]
        run = (entry.run, entry.seq, str(predicate.get("fingerprint", "")), bool(predicate["simulated"]))
    except (LcplanError, KeyError, TypeError, AttributeError):
        return  # damaged: `audit verify` names it
    connection.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?)", run)
    connection.executemany("INSERT INTO figures VALUES (?, ?, ?, ?, ?, ?, ?)", rows)


def _leaves(path: str, value: Any) -> Iterator[tuple[str, float]]:
    if _is_number(value):
        yield path, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key}", inner)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for number, inner in enumerate(value):
            yield from _leaves(f"{path}.{number}", inner)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
