"""Coverage: every planned cell and what became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lcplan.audit.refs import Records, Ref
from lcplan.base.diagnostics import Diagnostic, LcplanError
from lcplan.record import state
from lcplan.record.state import CellRecord


@dataclass(frozen=True, slots=True)
class Fate:
    """A planned cell and its fate (a status of the record, `not_run` or `retracted`), with the reason."""

    launch: str
    cell: str
    fingerprint: str
    fate: str
    reason: str
    run: str


@dataclass(frozen=True, slots=True)
class Coverage:
    """The fates of a plan's cells, in the order of the plan, and warnings about the state."""

    simulated: bool
    fates: tuple[Fate, ...]
    warnings: tuple[Diagnostic, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many cells have which fate, done first."""
        found = Counter(fate.fate for fate in self.fates)
        return {fate: found[fate] for fate in sorted(found, key=lambda f: (f != "done", f))}

    def as_json(self) -> dict[str, Any]:
        """Return what `audit coverage --json` prints."""
        return {"simulated": self.simulated, "counts": self.counts, "cells": [asdict(fate) for fate in self.fates]}


def coverage(root: Path, plan: Mapping[str, Any], simulated: bool | None = None) -> Coverage:
    """Return the fate of every cell of a plan file's content; by default in the records that this plan counts."""
    if simulated is None:
        simulated = plan.get("runtime") == "sim"
    found, warnings = state.load(root)
    cells = found.partition(simulated).cells if found else {}
    records = Records(root)
    fates = tuple(_fate(records, cell, cells.get(cell["fingerprint"])) for cell in plan["cells"])
    return Coverage(simulated, fates, tuple(warnings))


def _fate(records: Records, planned: Mapping[str, Any], record: CellRecord | None) -> Fate:
    launch, cell, fingerprint = str(planned.get("launch", "")), str(planned["cell"]), str(planned["fingerprint"])
    if record is None:
        blocked = planned.get("action") == "!"
        reason = str(planned.get("reason") or "") if blocked else "no record"
        return Fate(launch, cell, fingerprint, "blocked" if blocked else "not_run", reason, "")
    return Fate(launch, cell, fingerprint, record.status, _reason(records, record), record.run)


def _reason(records: Records, record: CellRecord) -> str:
    if record.status == "retracted":
        return records.retracted(record.run) or ""
    try:
        cell = records.cell(Ref(record.run, record.cell)) if record.run and record.status != "done" else {}
    except LcplanError as damage:
        return damage.diagnostics[0].message
    return str(cell.get("sentence") or cell.get("reason") or "")
