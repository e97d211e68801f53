"""Desired against recorded: what must be measured, what is kept, and which field made a record stale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

from lcplan.plan.model import Cell, Launch, Snapshot

_AGAIN = {
    "failed": "failed in {run}",
    "invalid": "its record in {run} is invalid",
    "interrupted": "was interrupted in {run}",
    "blocked": "was blocked before",
    "not_run": "was never run by the last apply",
    "retracted": "{run} was retracted",
}


def compare(launches: list[Launch], recorded: Snapshot, replace: Set[str] = frozenset()) -> None:
    """Set action and reason of every cell and launch. `replace` holds fingerprints to measure again regardless."""
    by_slot: dict[tuple[str, str | None, str], str] | None = None
    for launch in launches:
        for cell in launch.cells:
            if cell.action == "!":
                continue
            found = recorded.cells.get(cell.fingerprint)
            if found is None:
                if by_slot is None:
                    by_slot = _slots(recorded)
                _unrecorded(cell, launch, recorded, by_slot)
            elif found.status == "done":
                cell.recorded = found.run
                if cell.fingerprint in replace:
                    cell.action, cell.reason = "~", "replaced as asked"
                else:
                    cell.action, cell.reason = "=", f"recorded in {found.run}"
            else:
                cell.action, cell.reason = "~", _AGAIN[found.status].format(run=found.run or "no run")
        _settle(launch)


def changed_fields(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Yield `path: old -> new` for every leaf that differs, in order of the path."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in sorted({*before, *after}):
            here = f"{path}.{key}" if path else str(key)
            yield from changed_fields(before.get(key), after.get(key), here)
    elif before != after:
        yield f"{path}: {_show(before)} -> {_show(after)}"


def _slots(recorded: Snapshot) -> dict[tuple[str, str | None, str], str]:
    """Return the latest run of every (stack, variant, cell name): run ids carry stack and variant, and sort by time."""
    slots: dict[tuple[str, str | None, str], str] = {}
    for run, cell, _ in recorded.cells.values():
        parts = run.split("__")
        if len(parts) < 5:
            continue
        slot = (parts[0], parts[4] if len(parts) > 5 else None, cell)
        known = slots.get(slot)
        if known is None or _stamp(run) > _stamp(known):
            slots[slot] = run
    return slots


def _stamp(run: str) -> str:
    return run.rsplit("__", 1)[-1]


def _unrecorded(
    cell: Cell, launch: Launch, recorded: Snapshot, by_slot: dict[tuple[str, str | None, str], str]
) -> None:
    run = by_slot.get((cell.stack, cell.variant, cell.name))
    if run is None:
        cell.action, cell.reason = "+", "never measured"
        return
    cell.action, cell.recorded = "~", run
    fields = recorded.fields(run, cell.name)
    if fields is None:
        cell.reason = f"differs from {run}, whose manifest can't be read"
        return
    changes = [*changed_fields(fields[0], launch.behaviour), *changed_fields(fields[1], dict(cell.definition))]
    if not changes:
        cell.action, cell.reason, cell.recorded = "+", "never measured", None
        return
    more = f" (and {len(changes) - 3} more)" if len(changes) > 3 else ""
    cell.reason = "; ".join(changes[:3]) + more


def _settle(launch: Launch) -> None:
    """Derive the action of a launch from its cells."""
    todo = [cell for cell in launch.cells if cell.action in ("+", "~")]
    if not todo:
        blocked = [cell for cell in launch.cells if cell.action == "!"]
        launch.action = "!" if blocked and len(blocked) == len(launch.cells) else "="
        launch.reason = blocked[0].reason if launch.action == "!" else "every cell is recorded"
        return
    stale = next((c for c in todo if c.action == "~" and " -> " in c.reason), None)
    if stale is not None:
        launch.action, launch.reason = "-/+", stale.reason
    else:
        launch.action, launch.reason = "+", f"{len(todo)} of {len(launch.cells)} cells to measure"


def _show(value: Any) -> str:
    if value is None:
        return "absent"
    return str(value)
