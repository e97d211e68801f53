"""Runs as `runs list` and `runs show` tell of them, and their retraction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lcplan.audit.gates import Standing, run_status, standing
from lcplan.audit.refs import Records
from lcplan.base.diagnostics import Diagnostic, LcplanError, fail
from lcplan.base.select import select
from lcplan.record import ledger, manifest, state
from lcplan.record.index import opened

_FACTS = ("run", "stack", "variant", "layout", "quad", "context", "runtime", "simulated")


@dataclass(frozen=True, slots=True)
class Listed:
    """One run with its standing. `cells` are those that were selected."""

    predicate: Mapping[str, Any]
    status: str
    standing: Standing
    cells: tuple[Mapping[str, Any], ...]

    def as_json(self) -> dict[str, Any]:
        """Return what `runs list --json` prints: run, simulated, status, cells with their metrics, and the standing."""
        run = self.predicate
        return {
            **{key: run.get(key) for key in _FACTS},
            "simulated": bool(run["simulated"]),
            "status": self.status,
            "standing": self.standing.word,
            "why": self.standing.retracted or self.standing.provisional,
            "cells": [dict(cell) for cell in self.cells],
        }


def list_runs(root: Path, selectors: Sequence[str] = ()) -> tuple[list[Listed], list[Diagnostic]]:
    """Return the runs with a selected cell, by name, and an error for every manifest that cannot be read.

    Raises LcplanError: `bad-selector`, `selector-matches-nothing`.
    """
    records = Records(root)
    damaged: list[Diagnostic] = []
    pairs: list[tuple[str, Mapping[str, Any] | None]] = []
    for run in manifest.list_runs(root):
        try:
            pairs += [(run, cell) for cell in records.run(run)["cells"]] or [(run, None)]
        except LcplanError as damage:
            damaged += damage.diagnostics
    chosen = select(selectors, pairs, lambda pair: facts(records.run(pair[0]), pair[1]))
    cells: dict[str, list[Mapping[str, Any]]] = {}
    for run, cell in chosen:
        cells.setdefault(run, []).extend([cell] if cell else [])
    with opened(root) as index:
        listed = [
            Listed(records.run(run), run_status(records.run(run)), standing(records, index, run), tuple(found))
            for run, found in cells.items()
        ]
    return listed, damaged


def show_run(root: Path, run: str) -> Listed:
    """Return one run. Raises LcplanError `unknown-run`, `manifest-damaged`."""
    records = Records(root)
    predicate = records.run(run)
    with opened(root) as index:
        return Listed(predicate, run_status(predicate), standing(records, index, run), tuple(predicate["cells"]))


def invalid_rows(root: Path, selectors: Sequence[str] = ()) -> list[dict[str, str]]:
    """Return every cell that is no result, with its run and reason: the rows of `invalid_rows.csv`."""
    listed, _ = list_runs(root, selectors)
    return [
        {
            "run": str(one.predicate["run"]),
            "cell": str(cell["cell"]),
            "status": str(cell["status"]),
            "reason": str(cell.get("reason") or ""),
            "sentence": str(cell.get("sentence") or ""),
        }
        for one in listed
        for cell in one.cells
        if cell["status"] != "done"
    ]


def retract(root: Path, run: str, why: str) -> state.State:
    """Note in the ledger that a run's numbers do not hold, save and return the state without them.

    Nothing of the run is changed; its cells are planned again, or those of an earlier run count again. The caller holds
    the lock. Raises LcplanError: `unknown-run`, `no-reason`, `retracted-already`.
    """
    manifest.folder(root, run)
    if not why.strip():
        raise fail("no-reason", "a retraction needs a reason", 'write --why "..."')
    earlier = ledger.retracted(root).get(run)
    if earlier is not None:
        raise fail("retracted-already", f"run '{run}' was retracted already: {earlier}")
    ledger.append(root, "retracted", run, why=why.strip())
    return restate(root)[0]


def restate(root: Path) -> tuple[state.State, list[Diagnostic]]:
    """Tell the state again from manifests and ledger, keep serials and serve entries, save and return it."""
    kept, _ = state.load(root)
    told, warnings = state.rebuild(root)
    if kept is not None:
        told.lineage, told.serves = kept.lineage, kept.serves
        for part, before in ((told.real, kept.real), (told.simulated, kept.simulated)):
            part.serial, part.plans = before.serial, before.plans
    state.save(root, told)
    return told, warnings


def facts(predicate: Mapping[str, Any], cell: Mapping[str, Any] | None) -> dict[str, object]:
    """Return what selectors can ask of a run and one of its cells."""
    cell = cell or {}
    engine = predicate.get("engine") or {}
    model = predicate.get("model") or {}
    found: dict[str, object] = {
        "engine": [engine.get(key) for key in ("name", "kind") if engine.get(key)],
        "model": [model.get(key) for key in ("name", "path") if model.get(key)],
        "experiment": cell.get("experiments") or predicate.get("experiments") or [],
        "workload": cell.get("workload"),
        "status": cell.get("status"),
        "cell": cell.get("cell"),
    }
    found |= {key: predicate.get(key) for key in _FACTS} | {"simulated": str(bool(predicate["simulated"])).lower()}
    definition = cell.get("definition") or {}
    prompt = {"prompt": definition["prompt"]} if "prompt" in definition else {}
    return found | prompt | dict(cell.get("axes") or {})
