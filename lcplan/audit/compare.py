"""Two groups of repeats compared: a difference is claimed only beyond what chance explains.

The run is the unit. A claim needs two runs or more on each side, and a difference of the means that is beyond the 95 %
interval of the difference (Welch) and beyond the noise floor: the same interval from the spread of all repeated
identical cells of these launches, pooled over the cells of one kind.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from lcplan.audit.listing import Listed, list_runs, show_run
from lcplan.audit.refs import Records
from lcplan.audit.student import half_width, half_width_of_difference, quantile, relative_noise
from lcplan.base.canonical import digest
from lcplan.base.diagnostics import fail
from lcplan.record.index import opened

_COUNTS = ("sent", "completed")
_SAME = 1e-9
"""Relative difference that is none: arithmetic."""

Key = tuple[str, str]
"""A cell without its repeat: its name, and the hash of its definition."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over runs: how many, median, least and greatest, mean and half the width of its 95 % interval."""

    n: int
    median: float
    min: float
    max: float
    mean: float
    half_width: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of one cell on both sides.

    `change_percent` is that of the mean, `half_width` and `floor` are in the figure's unit, None where not known.
    `claimed` says whether there is a difference.
    """

    cell: str
    metric: str
    unit: str
    a: Spread
    b: Spread
    change_percent: float | None
    half_width: float | None
    floor: float | None
    claimed: bool
    sentence: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was compared: the runs of each side, rows, and in words the cells that only one side has."""

    a: tuple[str, ...]
    b: tuple[str, ...]
    simulated: bool
    rows: tuple[Row, ...]
    left_out: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return what `runs compare --json` prints."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Value:
    run: str
    launch: str
    kind: str
    metrics: Mapping[str, Mapping[str, Any]]


def compare(root: Path, a: str, b: str) -> Comparison:
    """Return the comparison of two run ids or selectors.

    Raises LcplanError: `unknown-run`, `bad-selector`, `selector-matches-nothing`, `nothing-to-compare`,
    `compare-mixed` for simulated and real runs together, `not-repeats` for a side with several launches of a cell.
    """
    sides = [_side(root, text) for text in (a, b)]
    kinds = {bool(one.predicate["simulated"]) for side in sides for one in side}
    if len(kinds) > 1:
        raise fail("compare-mixed", "simulated and real runs are never compared with each other",
                   "add simulated=true or simulated=false to the selectors")  # fmt: skip
    cells = [_cells(side, text) for side, text in zip(sides, (a, b), strict=True)]
    noise = _noise(root, [value for side in cells for some in side.values() for value in some], kinds == {True})
    rows = [row for key in cells[0] if key in cells[1] for row in _rows(key[0], cells[0][key], cells[1][key], noise)]
    left = [f"{name} is only in {side}" if name not in {other for other, _ in there} else f"{name} is defined otherwise"
            for side, here, there in (("A", *cells), ("B", *reversed(cells)))
            for name, known in here if (name, known) not in there]  # fmt: skip
    runs = [tuple(sorted({value.run for some in side.values() for value in some})) for side in cells]
    return Comparison(runs[0], runs[1], kinds == {True}, tuple(rows), tuple(dict.fromkeys(left)))


def _side(root: Path, text: str) -> list[Listed]:
    found = list_runs(root, [text])[0] if re.search(r"[=<>]", text) else [show_run(root, text)]
    standing = [one for one in found if not one.standing.retracted]
    if not any(cell["status"] == "done" for one in standing for cell in one.cells):
        raise fail("nothing-to-compare", f"'{text}' has no cell that is done in a run that stands")
    return standing


def _cells(side: Sequence[Listed], text: str) -> dict[Key, list[_Value]]:
    """Return the values of every cell of a side. Raises LcplanError `not-repeats`."""
    made: dict[Key, list[_Value]] = defaultdict(list)
    for one in side:
        for key, value in _values(one.predicate, one.cells):
            made[key].append(value)
    for (name, _), some in made.items():
        launches = {value.launch for value in some}
        if len(launches) > 1:
            runs = ", ".join(sorted({value.run for value in some})[:4])
            raise fail("not-repeats", f"'{text}' has {len(launches)} different launches with {name}: {runs}",
                       "name one, for example by stack=, variant=, quad=")  # fmt: skip
    return made


def _values(predicate: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Key, _Value]]:
    for cell in cells:
        if cell["status"] == "done":
            repeat = int(cell.get("repeat") or 1)
            name = str(cell["cell"]).removesuffix(f".r{repeat}") if repeat > 1 else str(cell["cell"])
            launch = str(predicate.get("fingerprint") or predicate["run"])
            yield (
                (name, digest(cell.get("definition") or {})),
                _Value(str(predicate["run"]), launch, str(cell.get("kind") or ""), cell.get("metrics") or {}),
            )


def _noise(root: Path, values: Sequence[_Value], simulated: bool) -> dict[tuple[str, str], tuple[float, int]]:
    """Return the relative noise by kind of workload and metric, from all standing repeats of these launches."""
    records = Records(root)
    groups: dict[tuple[str, str], dict[tuple[str, Key], list[float]]] = defaultdict(lambda: defaultdict(list))
    with opened(root) as index:
        for launch in dict.fromkeys(value.launch for value in values):
            for run in index.of_launch(launch, simulated):
                if records.retracted(run) is None and records.has(run):
                    predicate = records.run(run)
                    for key, value in _values(predicate, predicate["cells"]):
                        for metric, number in _numbers(value):
                            groups[value.kind, metric][launch, key].append(number)
    found = ((what, relative_noise(list(some.values()))) for what, some in groups.items())
    return {what: noise for what, noise in found if noise is not None}


def _rows(
    cell: str, a: Sequence[_Value], b: Sequence[_Value], noise: Mapping[tuple[str, str], tuple[float, int]]
) -> Iterator[Row]:
    units = {metric: str(value.metrics[metric].get("unit", "")) for value in a for metric, _ in _numbers(value)}
    for metric, unit in units.items():
        sides = [[number for value in side for name, number in _numbers(value) if name == metric] for side in (a, b)]
        if sides[1]:
            yield _row(cell, metric, unit, sides[0], sides[1], noise.get((a[0].kind, metric)))


def _row(
    cell: str, metric: str, unit: str, a: Sequence[float], b: Sequence[float], noise: tuple[float, int] | None
) -> Row:
    first, second = _spread(a), _spread(b)
    difference = second.mean - first.mean
    width, floor = half_width_of_difference(a, b), None
    if noise is not None:
        spread, freedom = noise
        floor = quantile(freedom) * spread * abs(first.mean) * math.sqrt(1 / len(a) + 1 / len(b))
    change = 100.0 * difference / abs(first.mean) if first.mean else None
    claimed, sentence = _claim(difference, first.mean, width, floor)
    return Row(cell, metric, unit, first, second, change, width, floor, claimed, sentence)


def _claim(difference: float, mean: float, width: float | None, floor: float | None) -> tuple[bool, str]:
    """Return whether there is a difference, and the sentence that says so or why not."""
    if abs(difference) <= _SAME * abs(mean):
        return False, "no difference shown: the means are equal"
    if width is None:
        return False, "no difference shown: one run has no interval; two or more are needed on each side"
    if abs(difference) <= width:
        return False, "no difference shown: within the 95 % interval"
    if floor is not None and abs(difference) <= floor:
        return False, "no difference shown: within the noise of repeated identical cells"
    word = "higher" if difference > 0 else "lower"
    by = f"{100.0 * abs(difference / mean):.3g} %" if mean else f"{abs(difference):.4g}"
    return True, f"B is {by} {word}, beyond the interval and the noise of repeats"


def _spread(values: Sequence[float]) -> Spread:
    return Spread(len(values), median(values), min(values), max(values), fmean(values), half_width(values))


def _numbers(value: _Value) -> Iterator[tuple[str, float]]:
    """Yield the figures that may differ by more than a count."""
    for name, metric in value.metrics.items():
        number = metric.get("value")
        if name not in _COUNTS and isinstance(number, (int, float)) and not isinstance(number, bool):
            yield name, float(number)
