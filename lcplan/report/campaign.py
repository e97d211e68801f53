"""What a report shows: the recorded runs, the cells that count today, and what is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lcplan.audit.gates import Standing, standing
from lcplan.audit.listing import Listed, list_runs
from lcplan.audit.refs import Records
from lcplan.record import ledger, state
from lcplan.record.index import opened


@dataclass(frozen=True, slots=True)
class Measured:
    """One recorded cell with its run's predicate and how it stands; `subject` is the name that it is drawn under."""

    predicate: Mapping[str, Any]
    cell: Mapping[str, Any]
    standing: Standing
    subject: str

    @property
    def run(self) -> str:
        """The run's id."""
        return str(self.predicate["run"])

    @property
    def ref(self) -> str:
        """The reference that `audit why` takes."""
        return f"{self.run}/{self.cell['cell']}"

    def figure(self, metric: str) -> Mapping[str, Any] | None:
        """Return a metric with its statistics, None when it was not recorded."""
        found = (self.cell.get("metrics") or {}).get(metric)
        return found if isinstance(found, Mapping) and found.get("value") is not None else None

    @property
    def axes(self) -> dict[str, int]:
        """The values that place the cell in its workload; a prompt that is no axis is one, too."""
        definition = self.cell.get("definition") or {}
        named = {axis: definition[axis] for axis in ("prompt", "users") if isinstance(definition.get(axis), int)}
        return named | dict(self.cell.get("axes") or {})

    @property
    def limited(self) -> bool:
        """Whether more users were asked for than fit at once."""
        return bool((self.cell.get("capacity") or {}).get("limited"))


@dataclass(frozen=True, slots=True)
class Campaign:
    """What is shown. `left_out` are cells that are no results; `hidden` counts simulated runs that are not shown."""

    root: Path
    runs: tuple[Listed, ...]
    cells: tuple[Measured, ...]
    left_out: tuple[Measured, ...]
    hidden: int
    plan: str
    lineage: str
    events: int
    warnings: tuple[str, ...]

    def subject(self, predicate: Mapping[str, Any]) -> str:
        """Return the name under which a run's numbers are drawn."""
        return _subject(predicate, _mixed(self.runs))


def gather(root: Path, simulated: bool = False, plan: Mapping[str, Any] | None = None) -> Campaign:
    """Return what a report of a state shows. With a plan (the content of its file), only that plan's cells.

    A cell that was measured several times counts once, as in the state; retracted numbers are in no chart.
    Raises LcplanError `no-state`.
    """
    listed, damaged = list_runs(state.existing(root))
    found, warnings = state.load(root)
    wanted = {c["fingerprint"] for c in plan["cells"]} if plan else None
    held: dict[str, set[str]] = {}
    for part in (found.real, found.simulated) if found else ():
        for fingerprint, record in part.cells.items():
            if wanted is None or fingerprint in wanted:
                held.setdefault(record.run, set()).add(fingerprint)
    shown = [one for one in listed if (simulated or not one.predicate["simulated"]) and (not plan or _run(one) in held)]
    cells = list(_cells(root, shown, held))
    return Campaign(
        root=root,
        runs=tuple(sorted(shown, key=lambda one: (str((one.predicate.get("times") or {}).get("begun")), _run(one)))),
        cells=tuple(c for c in cells if c.cell["status"] == "done"),
        left_out=tuple(c for c in cells if c.cell["status"] != "done"),
        hidden=sum(bool(one.predicate["simulated"]) for one in listed) if not simulated else 0,
        plan=str(plan.get("id", "")) if plan else "",
        lineage=found.lineage if found else "",
        events=ledger.head(root)[0],
        warnings=tuple(d.message for d in [*warnings, *damaged]),
    )


def _cells(root: Path, runs: Sequence[Listed], held: Mapping[str, set[str]]) -> Iterator[Measured]:
    records, mixed = Records(root), _mixed(runs)
    with opened(root) as index:
        for one in runs:
            if one.standing.retracted:
                continue
            for cell in one.predicate["cells"]:
                if cell["fingerprint"] in held.get(_run(one), ()):
                    stands = standing(records, index, _run(one), cell)
                    yield Measured(one.predicate, cell, stands, _subject(one.predicate, mixed))


def _mixed(runs: Sequence[Listed]) -> bool:
    """Return whether there are simulated runs beside real ones: no line may join the two."""
    return len({bool(one.predicate["simulated"]) for one in runs}) > 1


def _subject(predicate: Mapping[str, Any], mixed: bool) -> str:
    variant = f" / {predicate['variant']}" if predicate.get("variant") else ""
    simulated = " (simulated)" if mixed and predicate["simulated"] else ""
    return f"{predicate.get('stack') or 'unknown stack'}{variant}{simulated}"


def _run(one: Listed) -> str:
    return str(one.predicate["run"])
