"""References to recorded things: RUN, RUN/CELL, RUN/CELL#metric[.statistic], RUN#path.in.the.manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from lcplan.audit.figures import Quantity, unit_of
from lcplan.base.diagnostics import LcplanError, fail, nearest
from lcplan.record import ledger, manifest


@dataclass(frozen=True, slots=True)
class Ref:
    """What a reference names; "" for the parts that it leaves out."""

    run: str
    cell: str = ""
    metric: str = ""

    def __str__(self) -> str:
        return self.run + (f"/{self.cell}" if self.cell else "") + (f"#{self.metric}" if self.metric else "")


def parse(text: str) -> Ref:
    """Return the parts of a reference."""
    place, _, metric = text.strip().partition("#")
    run, _, cell = place.partition("/")
    return Ref(run, cell, metric)


@dataclass(slots=True)
class Records:
    """The sealed runs, each read once."""

    root: Path
    _read: dict[str, dict[str, Any]] = field(default_factory=dict)
    _retracted: dict[str, str] | None = None

    def run(self, run: str) -> dict[str, Any]:
        """Return the predicate of a run. Raises LcplanError."""
        if run not in self._read:
            self._read[run] = manifest.read(self.root, run)["predicate"]
        return self._read[run]

    def has(self, run: str) -> bool:
        """Return whether the record of a run can be read."""
        try:
            self.run(run)
        except LcplanError:
            return False
        return True

    def cell(self, ref: Ref) -> dict[str, Any]:
        """Return the record of a cell. Raises LcplanError `unknown-cell`."""
        cells = {str(c["cell"]): c for c in self.run(ref.run)["cells"]}
        if ref.cell not in cells:
            hint = nearest(ref.cell, cells) or f"its cells: {', '.join(sorted(cells)) or 'none'}"
            raise fail("unknown-cell", f"run '{ref.run}' has no cell '{ref.cell}'", hint)
        return dict(cells[ref.cell])

    def quantity(self, ref: Ref) -> Quantity:
        """Return the recorded number that a reference names. Raises LcplanError `unknown-metric`."""
        holder = self.cell(ref) if ref.cell else self.run(ref.run)
        found = _metric(holder.get("metrics") or {}, ref.metric) if ref.cell else None
        found = found or _path(holder, ref.metric)
        if found is None:
            known = sorted(holder.get("metrics") or {}) if ref.cell else sorted(dict(_numbers("", holder)))
            owner = f"cell '{ref.cell}' of run '{ref.run}'" if ref.cell else f"run '{ref.run}'"
            hint = nearest(ref.metric, known) or f"it records: {', '.join(known[:12]) or 'none'}"
            raise fail("unknown-metric", f"{owner} records no '{ref.metric}'", hint)
        return found

    def retracted(self, run: str) -> str | None:
        """Return why a run was retracted, None when it stands."""
        if self._retracted is None:
            self._retracted = ledger.retracted(self.root)
        return self._retracted.get(run)


def _metric(metrics: Mapping[str, Any], name: str) -> Quantity | None:
    """Return a metric's statistic: the median unless `.p90`, `.min`, `.max` or another one follows the name."""
    statistic = "value"
    if name not in metrics:
        name, _, statistic = name.rpartition(".")
    metric = metrics.get(name)
    if not isinstance(metric, Mapping):
        return None
    number = metric.get("value" if statistic == "median" else statistic)
    unit = "" if statistic == "n" else str(metric.get("unit", unit_of(name)))
    return Quantity(Decimal(repr(number)), unit) if _is_number(number) else None


def _path(holder: Mapping[str, Any], path: str) -> Quantity | None:
    numbers = dict(_numbers("", holder))
    number = numbers.get(path, numbers.get(f"capacity.logged.{path}"))
    return None if number is None else Quantity(Decimal(repr(number)), unit_of(path))


def _numbers(path: str, value: Any) -> list[tuple[str, float]]:
    if _is_number(value):
        return [(path, value)]
    if isinstance(value, Mapping):
        named = ((key, v) for key, v in value.items() if key not in ("cells", "metrics"))
        inner = [(f"{path}.{key}" if path else str(key), v) for key, v in named]
    elif isinstance(value, list):
        inner = [(f"{path}.{number}", v) for number, v in enumerate(value)]
    else:
        return []
    return [found for name, v in inner for found in _numbers(name, v)]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
