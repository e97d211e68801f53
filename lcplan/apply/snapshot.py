"""The recorded side of a comparison, read from the state directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lcplan.apply.history import History
from lcplan.base.diagnostics import Diagnostic, LcplanError
from lcplan.plan.model import Recorded, Snapshot
from lcplan.record import state as states


def snapshot(root: Path, simulated: bool) -> tuple[Snapshot, list[Diagnostic]]:
    """Return what is recorded (real or simulated) and warnings about the state. Raises LcplanError `state-newer`."""
    state, found = states.load(root)
    if state is None:
        return Snapshot(), found
    part = state.partition(simulated)

    def fields(run: str, cell: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
        return _fields(root, run, cell)

    cells: Any = part.cells
    # CellRecord has the fields of Recorded in the same order, so that 100,000 cells need no copy.
    assert Recorded._fields == states.CellRecord._fields
    lineage = state.lineage if part.serial else None
    history = History(root, simulated, part.cells)
    return Snapshot(lineage, part.serial, cells, fields, history.durations, history.loads, history.past), found


def _fields(root: Path, run: str, cell: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
    from lcplan.record import manifest

    try:
        predicate = manifest.read(root, run)["predicate"]
    except LcplanError:
        return None
    for one in predicate.get("cells", []):
        if one.get("cell") == cell:
            return predicate.get("behaviour", {}), one.get("definition", {})
    return None
