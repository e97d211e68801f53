"""The journal: one fsynced line before and one after every outside effect, so that a killed apply can be resumed.

`state/journal/<plan id>-<mode>.jsonl`; lines are `{"op", "phase", "run"?, ...}`. A journal without a last line
`{"op": "apply", "phase": "end"}` belongs to an apply that did not finish.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from lcplan.base.files import sync_folder


@dataclass
class Launched:
    """What a journal knows of one run that was begun: its launch, servers and cell results."""

    run: str
    launch: str
    context: dict[str, Any]
    handles: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    measuring: str | None = None
    sealed: bool = False
    stopped: bool = False


@dataclass
class Unfinished:
    """A journal of an apply that did not finish."""

    path: Path
    plan: str
    mode: str
    runs: dict[str, Launched]


class Journal:
    """An open journal. Every line is durable when the call returns."""

    def __init__(self, root: Path, plan: str, mode: str) -> None:
        folder = root / "journal"
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{plan[:16]}-{mode}.jsonl"
        fresh = not self.path.exists()
        self._file: IO[bytes] = self.path.open("ab", buffering=0)
        if fresh:
            sync_folder(folder)
        else:
            _mend(self.path)
        self.write("apply", "begin", plan=plan, mode=mode, pid=os.getpid())

    def write(self, op: str, phase: str, **data: Any) -> None:
        """Append one line and make it durable. Raises OSError; then nothing of the line is there."""
        text = json.dumps({"op": op, "phase": phase, **data}, separators=(",", ":"), ensure_ascii=False)
        line, before = text.encode() + b"\n", os.fstat(self._file.fileno()).st_size
        try:
            if self._file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(before)
            raise

    @contextmanager
    def effect(self, op: str, run: str, **data: Any) -> Iterator[dict[str, Any]]:
        """Write a line before and one after an effect; what the block puts into the mapping stands in the second."""
        self.write(op, "begin", run=run, **data)
        outcome: dict[str, Any] = {}
        yield outcome
        self.write(op, "end", run=run, **outcome)

    def close(self, finished: bool) -> None:
        """Close the journal; a finished one is removed, since everything in it stands in manifests and state."""
        if finished:
            self.write("apply", "end")
        self._file.close()
        if finished:
            self.path.unlink()


def unfinished(root: Path) -> list[Unfinished]:
    """Return the journals that an earlier apply left behind, oldest first."""
    try:
        paths = sorted((root / "journal").glob("*.jsonl"), key=lambda p: p.stat().st_mtime)
    except FileNotFoundError:
        return []
    return [_read(path) for path in paths]


def _read(path: Path) -> Unfinished:
    made = Unfinished(path, "", "", {})
    for line in path.read_bytes().split(b"\n"):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        _take(made, entry)
    return made


def _take(made: Unfinished, entry: dict[str, Any]) -> None:
    op, phase, run = entry["op"], entry["phase"], entry.get("run")
    if op == "apply":
        made.plan, made.mode = entry.get("plan", made.plan), entry.get("mode", made.mode)
        return
    if op == "run" and phase == "begin":
        made.runs[str(run)] = Launched(str(run), entry["launch"], entry["context"])
        return
    launched = made.runs.get(str(run))
    if launched is None:
        return
    if op == "learned":
        launched.context["predicate"] |= entry["predicate"]
    elif op == "launch" and phase == "end":
        launched.handles.append(entry["handle"])
    elif op == "measure" and phase == "begin":
        launched.measuring = entry["cell"]
    elif op == "measure" and phase == "end":
        launched.measuring = None
        launched.results.append(entry["result"])
    elif op == "stop" and phase == "end":
        launched.stopped = True
    elif op == "seal" and phase == "end":
        launched.sealed = True


def _mend(path: Path) -> None:
    """Cut off a last line that a crash left incomplete."""
    raw = path.read_bytes()
    if raw and not raw.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(raw.rfind(b"\n") + 1)
            file.flush()
            os.fsync(file.fileno())
