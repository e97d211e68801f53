"""The recorded side of a comparison, read from the state directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lcplan.apply.history import History
from lcplan.base.diagnostics import Diagnostic
from lcplan.plan.model import Recorded, Snapshot
from lcplan.record import state as states


def snapshot(root: Path, simulated: bool) -> tuple[Snapshot, list[Diagnostic]]:
    """Return what is recorded (real or simulated) and warnings about the state. Raises LcplanError `state-newer`."""
    state, found = states.load(root)
    if state is None:
        return Snapshot(), found
    part = state.partition(simulated)
    cells: Any = part.cells
    # CellRecord has the fields of Recorded in the same order, so that 100,000 cells need no copy.
    assert Recorded._fields == states.CellRecord._fields
    lineage = state.lineage if part.serial else None
    history = History(root, simulated, part.cells)

    def fields(run: str, cell: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
        return _fields(history.predicate(run), cell)

    drift, unseen = _drift(root, state, simulated)
    made = Snapshot(
        lineage, part.serial, cells, fields, history.durations, history.loads, history.past, state.serves, drift
    )
    return made, [*found, *unseen]


def _drift(root: Path, state: states.State, simulated: bool) -> tuple[dict[str, list[str]], list[Diagnostic]]:
    """Return what is seen of the servers that stay up; nothing is looked at when there are none."""
    looked = {name: known for name, known in state.serves.items() if known["simulated"] or not simulated}
    if not looked:
        return {}, []
    from lcplan.apply.serve_drift import look

    return look(root, looked)


def _fields(predicate: dict[str, Any] | None, cell: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
    for one in (predicate or {}).get("cells", []):
        if one.get("cell") == cell:
            return (predicate or {}).get("behaviour", {}), one.get("definition", {})
    return None
