"""The state, as text and JSON."""

from __future__ import annotations

from collections import Counter
from typing import Any

from lcplan.record.state import Partition, State


def state_json(state: State) -> dict[str, Any]:
    """Return what `state show --json` prints: counts, serials, serve entries; the cells stand in state.json itself."""
    return {
        "format": state.format,
        "lineage": state.lineage,
        "real": _partition(state.real),
        "simulated": _partition(state.simulated),
        "serves": state.serves,
    }


def state_text(state: State | None) -> str:
    """Return the state in a few lines."""
    if state is None:
        return "no state yet: nothing was applied"
    lines = [f"lineage    {state.lineage}"]
    for name, part in (("real", state.real), ("simulated", state.simulated)):
        found = _partition(part)
        counts = ", ".join(f"{count} {status}" for status, count in found["statuses"].items()) or "nothing"
        last = f", last plan {found['plan'][:12]}" if found["plan"] else ""
        lines.append(f"{name:<9}  serial {part.serial}, {counts} in {found['runs']} runs{last}")
    lines += [f"serves     {name}: {entry.get('run', '')}" for name, entry in sorted(state.serves.items())]
    return "\n".join(lines)


def _partition(part: Partition) -> dict[str, Any]:
    return {
        "serial": part.serial,
        "plan": part.plans[-1] if part.plans else None,
        "cells": len(part.cells),
        "runs": len({record.run for record in part.cells.values()} - {""}),
        "statuses": dict(sorted(Counter(record.status for record in part.cells.values()).items())),
    }
