"""Which charts a campaign has: pure data, from recorded cells to groups of charts with dots that know their run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Any

from lcplan.base.units import show_tokens
from lcplan.report.campaign import Measured

_BY_USERS = (
    ("ttft_s", "TTFT, median and p90", "s"),
    ("user_tokens_per_s", "User speed, median", "tokens/s"),
    ("output_tokens_per_s", "Total output", "tokens/s"),
    ("completed", "Completed of sent", "requests"),
)
_CHARTS: Mapping[str, Sequence[tuple[str, str, str]]] = {
    "needle": (("needles_found", "Needles found of asked", "needles"), ("ttft_s", "TTFT, median", "s")),
    "oneshot": (
        ("ttft_s", "TTFT", "s"),
        ("prefill_tokens_per_s", "Prefill", "tokens/s"),
        ("user_tokens_per_s", "Decode", "tokens/s"),
    ),
    "agent": (*_BY_USERS, ("hit_rate_percent", "Prefix cache hits", "%")),
}
_TURNS = (
    ("ttft_s", "TTFT per turn", "s"),
    ("tpot_ms", "Decode speed per turn", "tokens/s"),
    ("hit_rate_percent", "Prefix cache hits per turn", "%"),
)
_OF = {"completed": "sent", "needles_found": "needles_asked"}
"""A count and what it is a part of."""
_WORDS = {"prompt": "prompt", "history": "history", "new": "new tokens", "output": "output"}


@dataclass(frozen=True, slots=True)
class Dot:
    """One recorded value. `low` and `high` span its whisker; `capped` says that `high` is a figure of its own.

    `shown` is the value in digits, `label` all of it in words. `limited`: capacity-limited; `open`: not published.
    """

    x: float
    y: float
    low: float
    high: float
    capped: bool
    run: str
    shown: str
    label: str
    limited: bool
    open: bool


@dataclass(frozen=True, slots=True)
class Series:
    """The dots of one subject. `line` joins the medians of dots with one x."""

    name: str
    dots: tuple[Dot, ...]

    @property
    def line(self) -> list[tuple[float, float]]:
        """The points to join, from left to right."""
        ordered = sorted(self.dots, key=lambda dot: dot.x)
        return [(x, median(dot.y for dot in same)) for x, same in groupby(ordered, key=lambda dot: dot.x)]


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart. With `categories`, x counts them (and they are bars when x has no name); else x is a number.

    Numbers are drawn in powers of two, or `linear`.
    """

    title: str
    unit: str
    x_label: str
    series: tuple[Series, ...]
    categories: tuple[str, ...] = ()
    linear: bool = False

    @property
    def bars(self) -> bool:
        """Whether there is no axis of numbers: one bar for each record."""
        return bool(self.categories) and not self.x_label


@dataclass(frozen=True, slots=True)
class Group:
    """The charts of one workload (or of one of its prompts), its cells, and how many of its cells are no results."""

    title: str
    kind: str
    charts: tuple[Chart, ...]
    cells: tuple[Measured, ...]
    left_out: tuple[Measured, ...]

    @property
    def simulated(self) -> bool:
        """Whether any number of it is simulated."""
        return any(one.standing.simulated for one in self.cells)


def groups(cells: Sequence[Measured], left_out: Sequence[Measured]) -> list[Group]:
    """Return the groups of charts, workload by workload in the order of their names."""
    made = []
    for workload in sorted({_workload(one) for one in (*cells, *left_out)}):
        some = sorted((one for one in cells if _workload(one) == workload), key=lambda one: sorted(one.axes.items()))
        gone = [one for one in left_out if _workload(one) == workload]
        made += _workload_groups(workload, some, gone)
    return made


def _workload_groups(workload: str, cells: list[Measured], gone: list[Measured]) -> list[Group]:
    kind = str((cells or gone)[0].cell.get("kind") or workload)
    if kind == "ramp":
        return [Group(workload, kind, _ramp_charts(cells), tuple(cells), tuple(gone))]
    varying = _varying([*cells, *gone])
    panels = [axis for axis in varying if axis != "users"]
    by_panel = _split(cells, lambda one: _panel(one, panels))
    if "users" in varying and (not panels or any(len({m.axes.get("users") for m in p}) > 1 for p in by_panel.values())):
        gone_by = _split(gone, lambda one: _panel(one, panels))
        return [
            Group(", ".join(filter(None, [workload, name])), kind,
                  _charts(kind, by_panel.get(name, []), "users", lambda one: one.axes.get("users", 1)),
                  tuple(by_panel.get(name, ())), tuple(gone_by.get(name, ())))
            for name in dict.fromkeys([*by_panel, *gone_by])
        ]  # fmt: skip
    if len(varying) == 1 and len(_sharing(cells, varying[0])) > 1:
        axis = varying[0]
        charts = _charts(kind, cells, f"{axis} (tokens)", lambda one: one.axes.get(axis, 0))
        return [Group(workload, kind, charts, tuple(cells), tuple(gone))]
    return [Group(workload, kind, _category_charts(kind, cells, varying), tuple(cells), tuple(gone))]


def _charts(
    kind: str, cells: Sequence[Measured], x_label: str, x: Callable[[Measured], float], categories: Sequence[str] = ()
) -> tuple[Chart, ...]:
    made = []
    for metric, title, unit in _CHARTS.get(kind, _BY_USERS):
        series = [
            Series(name, tuple(dot for one in some if (dot := _dot(one, metric, x(one), unit))))
            for name, some in sorted(_split(cells, lambda one: one.subject).items())
        ]
        filled = tuple(one for one in series if one.dots)
        if filled:
            made.append(Chart(title, unit, x_label, filled, tuple(categories)))
    return tuple(made)


def _category_charts(kind: str, cells: Sequence[Measured], varying: Sequence[str]) -> tuple[Chart, ...]:
    """Return charts without an axis of numbers: what is compared are subjects, or combinations of axes."""
    if not varying:
        names = sorted({one.subject for one in cells})
        return _charts(kind, cells, "", lambda one: names.index(one.subject), names)
    ordered = sorted({tuple(one.axes.get(axis, 0) for axis in varying) for one in cells})
    names = [" × ".join(show_tokens(value) for value in values) for values in ordered]
    label = " × ".join(varying)
    return _charts(kind, cells, label, lambda one: ordered.index(tuple(one.axes.get(a, 0) for a in varying)), names)


def _ramp_charts(cells: Sequence[Measured]) -> tuple[Chart, ...]:
    made = []
    for metric, title, unit in _TURNS:
        series: dict[str, list[Dot]] = {}
        for one in cells:
            talks = one.axes.get("conversations", 1)
            name = one.subject + (f", {talks} conversations" if talks > 1 else "")
            for turn, length in enumerate((one.cell.get("definition") or {}).get("turns") or (), 1):
                dot = _dot(one, f"turn{turn}_{metric}", length, unit)
                if dot:
                    series.setdefault(name, []).append(dot)
        if series:
            named = tuple(Series(name, tuple(dots)) for name, dots in sorted(series.items()))
            made.append(Chart(title, unit, "tokens so far", named, linear=True))
    return tuple(made)


def _dot(one: Measured, metric: str, x: float, unit: str) -> Dot | None:
    found = one.figure(metric)
    if found is None:
        return None
    value = float(found["value"])
    low, high, capped = float(found.get("min", value)), float(found.get("max", value)), False
    whole = one.figure(_OF.get(metric, ""))
    if whole is not None:
        low, high, capped = value, float(whole["value"]), True
    elif "p90" in found:
        low, high, capped = value, float(found["p90"]), True
    if metric.endswith("tpot_ms"):
        if not value:
            return None
        value = 1000 / value
    if not metric.endswith("ttft_s") and whole is None:
        low, high, capped = value, value, False
    shown = show_number(value) + (f" of {show_number(high)}" if whole is not None else "")
    p90 = f", p90 {show_number(high)} {unit}" if capped and whole is None else ""
    label = f"{_where(one, metric)}: {shown} {unit}{p90} ({_worth(one)})"
    open_ = one.standing.word not in ("published", "simulated")
    return Dot(x, value, low, high, capped, one.run, shown, label, one.limited, open_)


def _where(one: Measured, metric: str) -> str:
    turn = f", turn {metric[4:].split('_')[0]}" if metric.startswith("turn") else ""
    return f"{one.subject}, {one.cell['cell']}{turn}"


def _worth(one: Measured) -> str:
    return one.standing.word + (", capacity-limited" if one.limited else "")


def show_number(value: Any) -> str:
    """Return a number for a person: four significant digits, thousands grouped."""
    number = float(value)
    if number == round(number) and abs(number) < 1e15:
        return f"{number:,.0f}"
    decimals = max(0, 4 - len(str(int(abs(number)))))
    return f"{number:,.{decimals}f}" if abs(number) >= 0.001 else f"{number:.3g}"


def _workload(one: Measured) -> str:
    return str(one.cell.get("workload") or one.cell["cell"])


def _varying(cells: Sequence[Measured]) -> list[str]:
    """Return the axes with more than one value, in the order of their names; subjects may differ in the others."""
    axes = sorted({axis for one in cells for axis in (one.cell.get("axes") or {})})
    return [axis for axis in axes if len({one.axes.get(axis) for one in cells}) > 1]


def _sharing(cells: Sequence[Measured], axis: str) -> set[int]:
    """Return the values of an axis at which some subject has another one, too."""
    by_subject = _split(cells, lambda one: one.subject)
    return {one.axes.get(axis, 0) for some in by_subject.values() for one in some if len(some) > 1}


def _panel(one: Measured, axes: Iterable[str]) -> str:
    return ", ".join(f"{_WORDS.get(axis, axis)} {show_tokens(one.axes.get(axis, 0))}" for axis in axes)


def _split(cells: Iterable[Measured], key: Callable[[Measured], str]) -> dict[str, list[Measured]]:
    made: dict[str, list[Measured]] = {}
    for one in cells:
        made.setdefault(key(one), []).append(one)
    return made
