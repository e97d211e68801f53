"""The ledger: one line of canonical JSON per event, each holding the sha256 of the line before it.

A line is `{at, kind, manifest_sha256, prev, run, seq, why}`, appended under flock and fsync. A crash can
leave a last line that is incomplete: readers pass over it and the next append cuts it off.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Literal

from lcplan.base.canonical import digest_bytes, dumps
from lcplan.base.diagnostics import Diagnostic, Source, error, fail
from lcplan.base.files import sync_folder

Kind = Literal["sealed", "adopted", "retracted", "blocked"]
GENESIS = "0" * 64
_TAIL = 1 << 16


@dataclass(frozen=True, slots=True)
class Entry:
    """One event. `manifest_sha256` is that of the run's manifest.json, "" where the event seals nothing."""

    seq: int
    kind: str
    run: str
    manifest_sha256: str
    prev: str
    at: str
    why: str


def path(root: Path) -> Path:
    """Return the file of the ledger."""
    return root / "ledger.jsonl"


def append(root: Path, kind: Kind, run: str, manifest_sha256: str = "", why: str = "") -> Entry:
    """Append one event durably and return it. Safe from several threads and processes. Raises OSError, LcplanError."""
    root.mkdir(parents=True, exist_ok=True)
    handle = os.open(path(root), os.O_RDWR | os.O_CREAT, 0o644)
    with os.fdopen(handle, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        last = _mend(file)
        before = _parse(last) if last else None
        if last and before is None:
            raise _damaged(root, 0)
        entry = Entry(
            seq=before.seq + 1 if before else 0,
            kind=kind,
            run=run,
            manifest_sha256=manifest_sha256,
            prev=digest_bytes(last) if last else GENESIS,
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            why=why,
        )
        file.write(dumps(asdict(entry)).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    if not before:
        sync_folder(root)
    return entry


def read(root: Path) -> list[Entry]:
    """Return all events in order. Raises LcplanError with file:line for a line that is no event."""
    entries = []
    for number, line in enumerate(_lines(root), 1):
        entry = _parse(line)
        if entry is None:
            raise _damaged(root, number)
        entries.append(entry)
    return entries


def readable(root: Path) -> list[Entry]:
    """Return the events that can be read, passing over damage, which is `check`'s to name."""
    return [entry for line in _lines(root) if (entry := _parse(line))]


def retracted(root: Path) -> dict[str, str]:
    """Return why each retracted run was retracted."""
    found = (_parse(line) for line in _lines(root) if b'"kind":"retracted"' in line)
    return {entry.run: entry.why for entry in found if entry}


def head(root: Path) -> tuple[int, str]:
    """Return how many events there are and the hash of the last one: (0, 64 zeros) for an empty ledger."""
    lines = _lines(root)
    return (len(lines), digest_bytes(lines[-1])) if lines else (0, GENESIS)


def since(root: Path, events: int, sha256: str) -> tuple[list[Entry], tuple[int, str]] | None:
    """Return the events after the first `events`, and the head; None when the last of those has another hash now."""
    lines = _lines(root)
    if events > len(lines) or (digest_bytes(lines[events - 1]) if events else GENESIS) != sha256:
        return None
    head = (len(lines), digest_bytes(lines[-1])) if lines else (0, GENESIS)
    return [entry for line in lines[events:] if (entry := _parse(line))], head


def check(root: Path) -> list[Diagnostic]:
    """Return an error for every line that is no event or does not follow the line before it."""
    findings = []
    prev, seq = GENESIS, 0
    for number, line in enumerate(_lines(root), 1):
        place = Source(str(path(root)), number)
        entry = _parse(line)
        if entry is None:
            findings.append(error("ledger-damaged", "this line of the ledger is no event", source=place))
        elif (entry.prev, entry.seq) != (prev, seq):
            findings.append(
                error(
                    "ledger-broken",
                    f"the chain breaks at event {entry.seq} ({entry.kind} {entry.run}): it does not follow the last",
                    "a line was changed, added or taken away after it was written; compare with git",
                    place,
                )
            )
        prev = digest_bytes(line)
        seq = (entry.seq if entry else seq) + 1
    return findings


def _lines(root: Path) -> list[bytes]:
    """Return the complete lines; what a crash left of a last one is no line."""
    try:
        data = path(root).read_bytes()
    except FileNotFoundError:
        return []
    *lines, rest = data.split(b"\n")
    return [*lines, rest] if _parse(rest) else lines


def _mend(file: IO[bytes]) -> bytes:
    """Leave the file at its end, the last line complete: cut a half-written one, end one that lacks only its line end.

    Returns the last line, b"" when the ledger is empty.
    """
    size = file.seek(0, os.SEEK_END)
    start = max(0, size - _TAIL)
    file.seek(start)
    tail = file.read()
    whole, _, rest = tail.rpartition(b"\n")
    if rest and _parse(rest):
        file.write(b"\n")
        return rest
    if rest:
        file.seek(size - len(rest))
        file.truncate()
    return whole.rpartition(b"\n")[2]


def _parse(line: bytes) -> Entry | None:
    try:
        entry = Entry(**json.loads(line))
    except (ValueError, TypeError):
        return None
    return entry if isinstance(entry.seq, int) else None


def _damaged(root: Path, number: int) -> Exception:
    return fail(
        "ledger-damaged",
        f"{'this' if number else 'the last'} line of the ledger is no event",
        f"restore {path(root)} from git; `lcplan audit verify` names everything that disagrees with it",
        Source(str(path(root)), number),
    )
