"""Verify: hash everything again and compare it with manifests, ledger and state, several files at once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from lcplan.base.canonical import digest_bytes
from lcplan.base.diagnostics import Diagnostic, LcplanError, Source, error
from lcplan.record import ledger, manifest, state

_HINT = "restore it from git, or retract the run: `lcplan runs retract RUN --why ...`"
_Claims = dict[str, list[tuple[str, state.CellRecord]]]
_THREADS = 2 * (os.cpu_count() or 1)


@dataclass(slots=True)
class Verified:
    """What was hashed: counts, bytes, `local` files that are kept elsewhere, and what was found, one finding each."""

    runs: int = 0
    files: int = 0
    bytes: int = 0
    local: int = 0
    findings: list[Diagnostic] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return what `audit verify --json` prints."""
        counts = {"runs": self.runs, "files": self.files, "bytes": self.bytes, "kept_elsewhere": self.local}
        return {"ok": not self.findings, **counts, "findings": [d.as_json() for d in self.findings]}


def verify(root: Path, runs: Sequence[str] = ()) -> Verified:
    """Return what disagrees with the records; with `runs` named, only those are looked at.

    A run is checked against its manifest, the manifest against the ledger, the ledger against itself and the state.
    Raises LcplanError `no-state` when there is no state folder.
    """
    entries = ledger.readable(state.existing(root))
    sealed = {entry.run: entry.manifest_sha256 for entry in entries if entry.manifest_sha256}
    present = manifest.list_runs(root)
    chosen = [manifest.folder(root, run).name for run in runs] if runs else present
    done = Verified(runs=len(chosen))
    claims = _claims(root, done)
    with ThreadPoolExecutor(_THREADS) as pool:
        for part in pool.map(lambda run: _run(root, run, sealed.get(run), claims), chosen):
            done.files += part.files
            done.bytes += part.bytes
            done.local += part.local
            done.findings += part.findings
        if not runs:
            done.findings += chain.from_iterable(pool.map(_recipe, sorted(root.glob("recipes/*"))))
    if not runs:
        done.findings += _missing_runs(root, sealed, set(present))
        done.findings += ledger.check(root)
        done.findings += _anchor(root)
    return done


def _run(root: Path, run: str, sealed: str | None, claims: _Claims) -> Verified:
    """Compare one run with its manifest, and that with the ledger."""
    part = Verified()
    folder = root / "runs" / run
    part.findings += _manifest(folder, run, sealed)
    try:
        statement = manifest.read(root, run)
        subjects = {s["name"]: s for s in statement["subject"]}
        for subject in subjects.values():
            _file(folder, subject, run, part)
        part.findings += _disagreements(root, run, statement["predicate"], claims)
    except LcplanError as damage:
        part.findings += damage.diagnostics
        return part
    except (KeyError, TypeError) as damage:
        part.findings.append(_finding("manifest-damaged", f"the manifest of run '{run}' lacks {damage}", folder))
        return part
    known = {*subjects, manifest.NAME}
    for extra in sorted(set(_files(folder)) - known):
        part.findings.append(_finding("file-extra", f"run '{run}' does not name the file '{extra}'", folder / extra))
    return part


def _manifest(folder: Path, run: str, sealed: str | None) -> Iterator[Diagnostic]:
    file = folder / manifest.NAME
    try:
        found = digest_bytes(file.read_bytes())
    except OSError:
        return  # reading it says so
    if sealed is None:
        yield _finding("run-extra", f"run '{run}' is not in the ledger: it was not sealed here", folder)
    elif sealed != found:
        sentence = f"the manifest of run '{run}' was written again after it was sealed"
        yield _finding("run-resealed", f"{sentence}: {found[:12]}, not {sealed[:12]}", file)


def _file(folder: Path, subject: dict[str, Any], run: str, part: Verified) -> None:
    name, file = subject["name"], folder / subject["name"]
    try:
        with file.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
            part.bytes += opened.tell()
    except OSError:
        if subject["annotations"]["kept"] == "local":
            part.local += 1
        else:
            part.findings.append(_finding("file-missing", f"'{name}' of run '{run}' is not there", file))
        return
    part.files += 1
    if found != subject["digest"]["sha256"]:
        part.findings.append(_finding("file-tampered", f"'{name}' of run '{run}' is not what was sealed", file))


def _files(folder: Path) -> Iterator[str]:
    top = str(folder)
    for here, _, names in os.walk(top):
        within = here[len(top) + 1 :]
        yield from (f"{within}/{name}" if within else name for name in names)


def _recipe(file: Path) -> list[Diagnostic]:
    if digest_bytes(file.read_bytes()) == file.stem:
        return []
    return [_finding("recipe-tampered", "this kept recipe is not the text that its name says", file)]


def _missing_runs(root: Path, sealed: dict[str, str], present: set[str]) -> list[Diagnostic]:
    gone = sorted(set(sealed) - present)
    return [_finding("run-missing", f"run '{run}' is in the ledger but not there", root / "runs" / run) for run in gone]


def _anchor(root: Path) -> list[Diagnostic]:
    """Compare the ledger with what the state noted about it: a chain that was made anew holds together in itself."""
    noted = state.anchor(root)
    if noted is None or ledger.since(root, *noted) is not None:
        return []
    sentence = f"the ledger is not the one that the state was saved with: event {noted[0] - 1} differs or is not there"
    return [_finding("ledger-rewritten", sentence, ledger.path(root))]


def _claims(root: Path, done: Verified) -> _Claims:
    """Return what the state says about each run's cells; a state that cannot be trusted is a finding."""
    if not state.path(root).exists():
        return {}  # it can be told again from what is verified here
    try:
        stored, warnings = state.load(root)
    except LcplanError as newer:
        done.findings += newer.diagnostics
        return {}
    done.findings += [replace(d, severity="error", code="state-damaged") for d in warnings[:1]]
    claims: _Claims = {}
    for part in (stored.real, stored.simulated) if stored and not warnings else ():
        for fingerprint, record in part.cells.items():
            claims.setdefault(record.run, []).append((fingerprint, record))
    return claims


def _disagreements(root: Path, run: str, predicate: Mapping[str, Any], claims: _Claims) -> Iterator[Diagnostic]:
    recorded = {cell["fingerprint"]: (cell["cell"], cell["status"]) for cell in predicate["cells"]}
    for fingerprint, claim in claims.get(run, ()):
        name, status = recorded.get(fingerprint, ("", ""))
        if claim.cell != name or claim.status not in (status, "retracted"):
            sentence = f"the state calls cell '{claim.cell}' of run '{run}' {claim.status}, its record does not"
            yield _finding("state-disagrees", sentence, state.path(root), "`lcplan state rebuild` writes it anew")


def _finding(code: str, message: str, file: Path, hint: str = _HINT) -> Diagnostic:
    return error(code, message, hint, Source(str(file)))
