"""Adopting the results of an older campaign: each run is copied, read and sealed; the originals are never touched."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lcplan import __version__
from lcplan.audit import legacy
from lcplan.audit.listing import restate
from lcplan.base.canonical import digest, digest_bytes
from lcplan.base.diagnostics import Diagnostic, LcplanError, error, fail, warning
from lcplan.record import manifest

_ORIGINAL = "manifest.original.json"
"""What a manifest.json of the older campaign is called in the sealed run."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """One run: how many cells were read, what is not known of it, and whether it was sealed now or earlier."""

    run: str
    cells: int
    unknown: tuple[str, ...]
    sealed_now: bool

    def as_json(self) -> dict[str, Any]:
        """Return what `import --results --json` prints."""
        return {"run": self.run, "cells": self.cells, "unknown": list(self.unknown), "sealed_now": self.sealed_now}


def adopt(root: Path, results: Path) -> tuple[list[Adopted], list[Diagnostic]]:
    """Adopt `results/runs/<run id>/` (or `results/<run id>/`) into a state; return the runs and what went wrong.

    A run that cannot be adopted is an error and keeps none of the others from it. Adopting a tree again does nothing;
    a run that differs from what was adopted is named. The caller holds the lock. Raises LcplanError `no-results`.
    """
    found: list[Adopted] = []
    problems: list[Diagnostic] = []
    for folder in _folders(results):
        try:
            found.append(_again(root, folder, problems) or _seal(root, folder))
        except LcplanError as wrong:
            problems += wrong.diagnostics
        except OSError as wrong:
            problems.append(error("file-unreadable", f"{wrong.filename or folder}: {wrong.strerror or wrong}"))
    if any(one.sealed_now for one in found):
        restate(root)
    return found, problems


def _folders(results: Path) -> list[Path]:
    top = results / "runs" if (results / "runs").is_dir() else results
    folders = sorted(one for one in top.iterdir() if one.is_dir()) if top.is_dir() else []
    if not folders:
        raise fail("no-results", f"{results} holds no folders of runs", "name the folder that holds `runs/<run id>/`")
    return folders


def _again(root: Path, folder: Path, problems: list[Diagnostic]) -> Adopted | None:
    """Return a run that is recorded already, None for one that is not."""
    if not (root / "runs" / folder.name).is_dir():
        return None
    statement = manifest.read(root, folder.name)
    sealed = {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}
    there = {_target(name): digest_bytes((folder / name).read_bytes()) for name in _files(folder)}
    differing = sorted(name for name in {*there, *sealed} - {".gitignore"} if there.get(name) != sealed.get(name))
    if differing:
        sentence = f"run '{folder.name}' is recorded already, and differs from this one in {', '.join(differing[:3])}"
        problems.append(warning("adopted-differs", sentence, "records are never written again; rename the folder"))
    predicate = statement["predicate"]
    return Adopted(folder.name, len(predicate["cells"]), tuple(predicate.get("unknown") or ()), False)


def _seal(root: Path, folder: Path) -> Adopted:
    run = folder.name
    _check_name(run)
    known = legacy.read(folder)
    staging = root / "staging" / run
    shutil.rmtree(staging, ignore_errors=True)
    for name in _files(folder):
        target = staging / _target(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name, target)
    staging.mkdir(parents=True, exist_ok=True)
    manifest.seal(root, staging, _predicate(run, known), kind="adopted")
    return Adopted(run, len(known.cells), tuple(known.unknown), True)


def _predicate(run: str, known: legacy.Legacy) -> dict[str, Any]:
    """Return what the manifest says. Only a command that is known and a passed needle gate make numbers publishable."""
    gated = known.complete and any(cell["kind"] == "needle" for cell in known.cells)
    empty = dict.fromkeys(("stack", "variant", "layout", "quad", "context", "runtime", "image", "model", "capacity"))
    return {
        "run": run,
        "simulated": False,
        "adopted": True,
        "lcplan": __version__,
        "status": "done" if known.cells or known.known.get("capacity") else "not_run",
        "lineage": None,
        "plan": {"id": None, "file": None},
        "recipe": [],
        "argv": [],
        "env": {},
        "engine": {},
        "node": {},
        "times": {},
        **empty,
        **known.known,
        "fingerprint": digest(["adopted", run]),
        "experiments": ["adopted"],
        "gates": {"adopted": {"needle": "all"}} if gated else {},
        "policy": {"gates": "required"},
        "unknown": known.unknown,
        "cells": known.cells,
    }


def _check_name(run: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", run):
        raise fail("bad-name", f"'{run}' is no run id", "use letters, digits, '.', '_' and '-'")


def _files(folder: Path) -> Iterator[str]:
    """Yield the plain files of a folder. Raises LcplanError for anything else."""
    for file in sorted(folder.rglob("*")):
        if file.is_symlink() or not (file.is_file() or file.is_dir()):
            raise fail("not-a-plain-file", f"{file} is not a plain file and cannot be adopted")
        if file.is_file():
            yield file.relative_to(folder).as_posix()


def _target(name: str) -> str:
    return _ORIGINAL if name == manifest.NAME else name
