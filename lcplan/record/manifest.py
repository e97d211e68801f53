"""Manifests: the write-once record of a run, in the shape of an in-toto Statement v1.

`subject` names every file of the run's folder (`name`, `digest.sha256`, `annotations: {bytes, kept}`), `predicate` says
what was run and what came out. Shape: https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from lcplan.base.canonical import digest_bytes
from lcplan.base.diagnostics import Source, fail, nearest
from lcplan.base.files import sync_folder
from lcplan.record import ledger

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://lcplan.dev/run/v1"
NAME = "manifest.json"
LOCAL_ABOVE = 5_000_000
"""Bytes above which a file is kept where it was measured only, not in git."""

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def run_id(
    stack: str,
    layout: str,
    quad: str | None,
    context_tokens: int,
    kind: str,
    variant: str | None,
    now: datetime,
    taken: Callable[[str], bool],
) -> str:
    """Return `<stack>__<layout>_<quad>__<ctx>k__<kind>[__<variant>]__<MMDD-HHMMSS>`, at the next second that is free.

    No `_<quad>` when it is None (the whole node). `now` is UTC; ctx is context / 1024.
    """
    parts = [stack, f"{layout}_{quad}" if quad else layout, f"{context_tokens / 1024:.6g}k", kind]
    stem = "__".join([*parts, variant] if variant else parts)
    while taken(run := f"{stem}__{now:%m%d-%H%M%S}"):
        now += timedelta(seconds=1)
    return run


def taken(root: Path, run: str) -> bool:
    """Return whether a run of this id is sealed or being written."""
    return (root / "runs" / run).exists() or (root / "staging" / run).exists()


def seal(root: Path, staging: Path, predicate: dict[str, Any], kind: ledger.Kind = "sealed") -> dict[str, Any]:
    """Seal `state/staging/<run id>` as `state/runs/<run id>` and return the statement; `predicate["run"]` is the id.

    Everything is durable and in the ledger when it returns. Calling it again after a crash at any point finishes the
    work; a run whose ledger line was already written keeps the manifest of that line.
    Raises LcplanError when the run is sealed already or the folder holds something that is not a plain file.
    """
    run = str(predicate["run"])
    if staging.name != run:
        raise fail("run-misnamed", f"the folder {staging} does not hold run '{run}'")
    if (root / "runs" / run).exists():
        raise fail("run-sealed", f"run '{run}' is sealed already; records are never written again")
    if not _awaits_move(root, staging):
        _ignore_local(staging)
        statement = {
            "_type": STATEMENT,
            "subject": [_subject(staging, file) for file in _files(staging)],
            "predicateType": PREDICATE,
            "predicate": predicate,
        }
        raw = (json.dumps(statement, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()
        (staging / NAME).unlink(missing_ok=True)
        (staging / NAME).write_bytes(raw)
        _make_final(staging)
        ledger.append(root, kind, run, digest_bytes(raw))
    _move(root, staging)
    return read(root, run)


def finish(root: Path) -> list[str]:
    """Move the runs that a crash left between their ledger line and their place; return their ids."""
    folders = sorted(root.glob("staging/*/"))
    found = [folder for folder in folders if _awaits_move(root, folder)]
    for folder in found:
        _move(root, folder)
    return [folder.name for folder in found]


def list_runs(root: Path) -> list[str]:
    """Return the ids of all sealed runs, sorted by name."""
    try:
        with os.scandir(root / "runs") as entries:
            return sorted(entry.name for entry in entries if _RUN.fullmatch(entry.name) and entry.is_dir())
    except FileNotFoundError:
        return []


def folder(root: Path, run: str) -> Path:
    """Return the folder of a sealed run. Raises LcplanError `unknown-run` with the nearest id."""
    found = root / "runs" / run
    if not _RUN.fullmatch(run) or not found.is_dir():
        raise fail("unknown-run", f"there is no run '{run}' in {root}", nearest(run, list_runs(root)))
    return found


def read(root: Path, run: str) -> dict[str, Any]:
    """Return the statement of a run. Raises LcplanError: `unknown-run`, or `manifest-damaged` with the place."""
    file = folder(root, run) / NAME
    try:
        statement = json.loads(file.read_bytes())
        if statement["predicate"]["run"] != run:
            raise ValueError(f"it is the record of run {statement['predicate']['run']!r}")
        if not isinstance(statement["subject"], list):
            raise ValueError("it names no files")
        if not isinstance(statement["predicate"]["cells"], list) or "simulated" not in statement["predicate"]:
            raise ValueError("it does not tell of its cells")
    except FileNotFoundError:
        raise fail("manifest-missing", f"run '{run}' has no manifest", source=Source(str(file))) from None
    except (ValueError, KeyError, TypeError) as reason:
        line = getattr(reason, "lineno", 0)
        raise fail(
            "manifest-damaged",
            f"the manifest of run '{run}' cannot be read: {reason}",
            "restore it from git; records are never repaired by hand",
            Source(str(file), line, getattr(reason, "colno", 0)),
        ) from None
    return dict(statement)


def _awaits_move(root: Path, staging: Path) -> bool:
    try:
        sha256 = digest_bytes((staging / NAME).read_bytes())
    except FileNotFoundError:
        return False
    return any(entry.run == staging.name and entry.manifest_sha256 == sha256 for entry in ledger.readable(root))


def _ignore_local(staging: Path) -> None:
    """Keep large files out of git by a .gitignore of the run's own, which is sealed with it."""
    large = [f for f in _files(staging) if (staging / f).stat().st_size > LOCAL_ABOVE]
    if large:
        (staging / ".gitignore").unlink(missing_ok=True)
        (staging / ".gitignore").write_text("".join(f"/{name}\n" for name in large))


def _files(staging: Path) -> list[str]:
    found = []
    for here, _, names in os.walk(staging):
        for name in names:
            file = Path(here) / name
            if file.is_symlink() or not file.is_file():
                raise fail("not-a-plain-file", f"{file} is not a plain file and cannot be sealed")
            found.append(file.relative_to(staging).as_posix())
    return sorted(name for name in found if name != NAME)


def _subject(staging: Path, name: str) -> dict[str, Any]:
    with (staging / name).open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        size = file.tell()
    kept = "local" if size > LOCAL_ABOVE else "git"
    return {"name": name, "digest": {"sha256": sha256}, "annotations": {"bytes": size, "kept": kept}}


def _make_final(staging: Path) -> None:
    """Make all files of a folder durable and read-only."""
    for here, _, names in os.walk(staging):
        for name in names:
            handle = os.open(Path(here) / name, os.O_RDONLY)
            try:
                os.fsync(handle)
                os.fchmod(handle, 0o444)
            finally:
                os.close(handle)
        sync_folder(Path(here))


def _move(root: Path, staging: Path) -> None:
    runs = root / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    staging.rename(runs / staging.name)
    sync_folder(runs)
    sync_folder(staging.parent)
