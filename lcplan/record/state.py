"""The state: which cell is recorded in which run. `state.json` is committed to git: one cell per line, sorted.

The state is an index: all that it says about cells can be told again from the manifests and the ledger (`rebuild`).
"""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from json.encoder import encode_basestring as quoted
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from lcplan.base.diagnostics import Diagnostic, LcplanError, Source, fail, warning
from lcplan.base.files import write_atomic
from lcplan.record import ledger, manifest

FORMAT = 1
_T = TypeVar("_T")
HISTORY = 50
"""Earlier states that are kept in `state/history`."""


STATUSES = frozenset({"done", "invalid", "failed", "blocked", "interrupted", "not_run", "retracted"})
"""What may have become of a cell."""


_IGNORED = """\
# lcplan's own: state.json, ledger.jsonl, recipes/ and runs/ belong into git, these do not.
/lock
/journal/
/history/
/staging/
/serve/
/index.sqlite*
"""


class CellRecord(NamedTuple):
    """Where a cell is recorded: its run ("" when none was started), its name there, and its status."""

    run: str
    cell: str
    status: str


@dataclass(slots=True)
class Partition:
    """What is recorded, real or simulated. `plans[i]` is the plan whose apply made serial i + 1."""

    serial: int = 0
    plans: list[str] = field(default_factory=list)
    cells: dict[str, CellRecord] = field(default_factory=dict)


@dataclass(slots=True)
class State:
    """The recorded side of a plan. `lineage` names the campaign; `serves` the stacks that stay up, by entry name."""

    lineage: str
    real: Partition = field(default_factory=Partition)
    simulated: Partition = field(default_factory=Partition)
    serves: dict[str, dict[str, Any]] = field(default_factory=dict)
    format: int = FORMAT

    def partition(self, simulated: bool) -> Partition:
        """Return the partition of simulated or of real records."""
        return self.simulated if simulated else self.real


def new(lineage: str | None = None) -> State:
    """Return an empty state of a lineage of its own."""
    return State(lineage or uuid.uuid4().hex)


def path(root: Path) -> Path:
    """Return the state's file."""
    return root / "state.json"


def existing(root: Path) -> Path:
    """Return the state folder. Raises LcplanError `no-state` when it is not there."""
    if not root.is_dir():
        raise fail("no-state", f"there is no state in {root}", "name the folder with --state")
    return root


def load(root: Path) -> tuple[State | None, list[Diagnostic]]:
    """Return the state, None when nothing was ever applied, and warnings.

    A state that is damaged, lost, or names runs that are not there is rebuilt from the manifests, with a warning; the
    file itself is left as it is. Raises LcplanError `state-newer` for a format of a later lcplan.
    """
    present = set(manifest.list_runs(root))
    try:
        state = _parse(path(root).read_bytes())
    except FileNotFoundError:
        if not present:
            return None, []
        reason = "is not there, though there are runs"
    except _Newer as newer:
        raise fail(
            "state-newer",
            f"this state has format {newer}, this lcplan knows formats up to {FORMAT}",
            "use the newer lcplan that wrote it",
            Source(str(path(root))),
        ) from None
    except (ValueError, TypeError, KeyError, AttributeError) as damage:
        reason = f"is damaged ({damage})"
    else:
        missing = sorted(_runs_of(state) - present)
        if not missing:
            return state, []
        reason = f"names run '{missing[0]}', which is not there"
    found = rebuild(root)
    found[1].insert(
        0,
        warning(
            "state-rebuilt",
            f"the state {reason}; it was rebuilt from {len(present)} manifests",
            "`lcplan state rebuild` writes it; compare with git before you commit",
            Source(str(path(root))),
        ),
    )
    return found


def save(root: Path, state: State) -> None:
    """Write the state durably; the one it replaces goes to `state/history/<real>-<simulated>.json`. Raises OSError."""
    if not (root / ".gitignore").exists():
        write_atomic(root / ".gitignore", _IGNORED)
    _keep_previous(root)
    write_atomic(path(root), dumps(state, ledger.head(root)))


def dumps(state: State, head: tuple[int, str] = (0, ledger.GENESIS)) -> str:
    """Return the text of state.json: one cell per line, sorted by fingerprint; `head` is that of the ledger."""
    return (
        "{\n"
        f'"format": {state.format},\n'
        f'"lineage": {quoted(state.lineage)},\n'
        f'"serials": {{"real": {state.real.serial}, "simulated": {state.simulated.serial}}},\n'
        f'"ledger": {{"events": {head[0]}, "sha256": "{head[1]}"}},\n'
        f'"serves": {json.dumps(state.serves, sort_keys=True, ensure_ascii=False)},\n'
        f'"real": {_partition_text(state.real)},\n'
        f'"simulated": {_partition_text(state.simulated)}\n'
        "}\n"
    )


def note_plan(partition: Partition, plan: str) -> None:
    """Count one more apply, of this plan."""
    partition.serial += 1
    partition.plans.append(plan)


def absorb(state: State, predicate: Mapping[str, Any]) -> None:
    """Enter the cells of a sealed run. A cell that is done stays so until it is measured again with success."""
    cells = state.partition(bool(predicate["simulated"])).cells
    for cell in predicate["cells"]:
        known = cells.get(cell["fingerprint"])
        if known is None or known.status != "done" or cell["status"] == "done":
            cells[cell["fingerprint"]] = CellRecord(predicate["run"], cell["cell"], cell["status"])


def keep_entry(root: Path, name: str, entry: Mapping[str, Any] | None) -> None:
    """Keep what the state says of a serve entry beside its log, for a rebuild; None takes it away. Raises OSError."""
    file = root / "serve" / name / "entry.json"
    if entry is None:
        file.unlink(missing_ok=True)
    else:
        write_atomic(file, json.dumps({"name": name, "entry": entry}, ensure_ascii=False) + "\n")


def rebuild(root: Path) -> tuple[State, list[Diagnostic]]:
    """Return the state told again from manifests and ledger, and a warning for every manifest that cannot be read.

    Every sealed run counts as one serial, as when it was sealed. Serve entries are those that `keep_entry` kept; where
    the folder is not there they are, like serials that no manifest shows, those of the newest state in the history.
    """
    warnings: list[Diagnostic] = []
    base = _newest_of_history(root)
    state = State(base.lineage, serves=_kept_entries(root) if (root / "serve").is_dir() else base.serves)
    withdrawn = []
    retracted = ledger.retracted(root)
    for run in _in_ledger_order(root):
        try:
            predicate = manifest.read(root, run)["predicate"]
            if run in retracted:
                withdrawn.append(predicate)
            else:
                absorb(state, predicate)
            if plan := (predicate.get("plan") or {}).get("id"):
                note_plan(state.partition(bool(predicate["simulated"])), plan)
            state.lineage = predicate.get("lineage") or state.lineage
        except LcplanError as damage:
            warnings += [warning(d.code, d.message, d.hint, d.source) for d in damage.diagnostics]
        except (KeyError, TypeError, AttributeError):
            warnings.append(warning("manifest-damaged", f"the manifest of run '{run}' does not tell of its cells"))
    for predicate in withdrawn:
        withdraw(state, predicate)
    for part, before in ((state.real, base.real), (state.simulated, base.simulated)):
        if before.serial > part.serial:
            part.serial, part.plans = before.serial, before.plans
    return state, warnings


def withdraw(state: State, predicate: Mapping[str, Any]) -> None:
    """Mark the cells of a retracted run, where no other run holds them."""
    cells = state.partition(bool(predicate["simulated"])).cells
    for cell in predicate["cells"]:
        known = cells.get(cell["fingerprint"])
        if known is None or known.run == predicate["run"]:
            cells[cell["fingerprint"]] = CellRecord(predicate["run"], cell["cell"], "retracted")


def anchor(root: Path) -> tuple[int, str] | None:
    """Return how many events the ledger had when the state was saved and the hash of the last, None when unknown."""
    try:
        noted = json.loads(path(root).read_bytes())["ledger"]
        return int(noted["events"]), str(noted["sha256"])
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None


class _Newer(Exception):
    pass


def _parse(raw: bytes) -> State:
    collecting = gc.isenabled()
    gc.disable()  # a hundred thousand small lists would set it off again and again
    try:
        value = json.loads(raw)
        if not isinstance(value["format"], int):
            raise ValueError("its format is no number")
        if value["format"] > FORMAT:
            raise _Newer(value["format"])
        serials = value["serials"]
        return State(
            lineage=_checked(value["lineage"], str),
            real=_partition(value["real"], serials["real"]),
            simulated=_partition(value["simulated"], serials["simulated"]),
            serves={name: _checked(entry, dict) for name, entry in _checked(value["serves"], dict).items()},
        )
    finally:
        if collecting:
            gc.enable()


def _partition(value: Mapping[str, Any], serial: int) -> Partition:
    cells = dict(zip(value["cells"], map(CellRecord._make, value["cells"].values()), strict=True))
    for column in zip(*cells.values(), strict=True):
        for text in set(column):
            _checked(text, str)
    if strange := {record.status for record in cells.values()} - STATUSES:
        raise ValueError(f"there is no status {min(strange)!r:.40}")
    plans = [_checked(plan, str) for plan in _checked(value["plans"], list)]
    return Partition(_checked(serial, int), plans, cells)


def _checked(value: Any, kind: type[_T]) -> _T:
    if not isinstance(value, kind):
        raise ValueError(f"expected {kind.__name__}, found {value!r:.40}")
    return value


def _runs_of(state: State) -> set[str]:
    runs = {record.run for part in (state.real, state.simulated) for record in part.cells.values()}
    return runs - {""}


def _partition_text(partition: Partition) -> str:
    lines = [
        f"{quoted(fingerprint)}: [{quoted(run)}, {quoted(cell)}, {quoted(status)}]"
        for fingerprint, (run, cell, status) in sorted(partition.cells.items())
    ]
    cells = "{\n" + ",\n".join(lines) + "\n}" if lines else "{}"
    return f'{{"plans": {json.dumps(partition.plans)}, "cells": {cells}}}'


def _keep_previous(root: Path) -> None:
    """Link the present state into the history under its serials, and let the oldest go."""
    try:
        with path(root).open(encoding="utf-8", errors="replace") as file:
            found = re.search(r'"serials": \{"real": (\d+), "simulated": (\d+)\}', file.read(4096))
    except FileNotFoundError:
        return
    if not found:
        return
    history = root / "history"
    history.mkdir(exist_ok=True)
    kept = history / f"{int(found[1]):06d}-{int(found[2]):06d}.json"
    kept.unlink(missing_ok=True)
    try:
        os.link(path(root), kept)
    except OSError:  # a file system without links
        shutil.copyfile(path(root), kept)
    for old in _history(root)[:-HISTORY]:
        old.unlink()


def _history(root: Path) -> list[Path]:
    """Return the earlier states, oldest first."""
    return sorted(root.glob("history/*.json"), key=lambda file: sum(map(int, file.stem.split("-"))))


def _kept_entries(root: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(root.glob("serve/*/entry.json")):
        try:
            kept = json.loads(file.read_bytes())
            found[kept["name"]] = _checked(kept["entry"], dict)
        except (OSError, ValueError, TypeError, KeyError):
            continue
    return found


def _newest_of_history(root: Path) -> State:
    for file in reversed(_history(root)):
        try:
            state = _parse(file.read_bytes())
        except (ValueError, TypeError, KeyError, AttributeError, _Newer):
            continue
        state.real.cells.clear()
        state.simulated.cells.clear()
        return state
    return new()


def _in_ledger_order(root: Path) -> Iterable[str]:
    place = {entry.run: entry.seq for entry in ledger.readable(root) if entry.manifest_sha256}
    return sorted(manifest.list_runs(root), key=lambda run: (place.get(run, len(place)), run))
