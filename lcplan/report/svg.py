"""Charts as SVG by matplotlib: text stays text, colours are CSS variables of the page, dots are links to their runs."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from lcplan.base.diagnostics import fail
from lcplan.base.units import show_tokens
from lcplan.report.figures import Chart, Dot
from lcplan.report.gantt import Bar, Gantt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SLOTS = 8
"""Colours; a page gives each subject one, and a ninth takes the first again with another shape and a dashed line."""
_MARKERS = (("o", "●"), ("^", "▲"), ("D", "◆"), ("v", "▼"), ("P", "✚"), ("X", "✖"), ("<", "◀"), (">", "▶"))
"""Shapes as matplotlib names them, and the same for a legend."""
_INK, _GRID, _GREY, _PAPER = "#010101", "#020202", "#030303", "#040404"
_VARIABLES = {_INK: "--ink", _GRID: "--grid", _GREY: "--grey", _PAPER: "--paper"} | {
    f"#0505{slot:02x}": f"--s{slot}" for slot in range(SLOTS)
}
"""Placeholder colours in what matplotlib writes, and the variables of the page that they become."""
_WIDTH, _HEIGHT = 3.9, 2.7
_POINT = "lcplan-dot-"


def draw(chart: Chart, slots: Mapping[str, int], name: str) -> str:
    """Return a chart as inline SVG. `slots` gives each series its colour, `name` makes the ids of the page differ.

    Raises LcplanError `charts-missing` without matplotlib.
    """
    figure, axes = _figure(_WIDTH, _HEIGHT)
    if chart.bars:
        links = _bars(axes, chart, slots)
    else:
        links = _lines(axes, chart, slots)
        axes.set_ylim(0, 1.08 * max((dot.high for one in chart.series for dot in one.dots), default=1) or 1)
        axes.set_xlabel(chart.x_label)
        axes.set_ylabel(chart.unit)
    return _inline(figure, name, f"{chart.title} ({chart.unit})", links)


def draw_gantt(gantt: Gantt, slots: Mapping[str, int], name: str) -> str:
    """Return what ran where and when as inline SVG."""
    figure, axes = _figure(9.2, 0.8 + 0.5 * len(gantt.lanes))
    links: list[tuple[str, str]] = []
    for bar in gantt.bars:
        colour = _colour(slots.get(bar.subject, 0))
        for lane in bar.lanes:
            _gantt_bar(axes, bar, gantt.lanes.index(lane), colour, links)
    axes.set_yticks(range(len(gantt.lanes)), gantt.lanes)
    axes.set_ylim(len(gantt.lanes) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel(gantt.x_label)
    axes.grid(axis="y", visible=False)
    return _inline(figure, name, "Launches as they ran", links)


def key(slot: int) -> tuple[str, str]:
    """Return how a legend shows a slot: the shape of its dots, and its colour as CSS."""
    return _marker(slot)[1], f"var(--s{slot % SLOTS})"


def _marker(slot: int) -> tuple[str, str]:
    """Return the shape of a slot; a slot that shares its colour with another has another shape."""
    return _MARKERS[(slot + 3 * (slot // SLOTS)) % SLOTS]


def _gantt_bar(axes: Axes, bar: Bar, lane: int, colour: str, links: list[tuple[str, str]]) -> None:
    loading = max(bar.ready - bar.start, 0)
    for left, width, alpha, what in ((bar.start, loading, 0.35, "loading"), (bar.ready, bar.end - bar.ready, 0.9, "")):
        if width > 0:
            drawn = axes.barh(lane, width, left=left, height=0.62, color=colour, alpha=alpha)
            drawn[0].set_url(_link(links, bar.run, f"{bar.run}: {what or 'measuring'}, {bar.said}"))


def _lines(axes: Axes, chart: Chart, slots: Mapping[str, int]) -> list[tuple[str, str]]:
    links: list[tuple[str, str]] = []
    count = len(chart.series)
    for number, series in enumerate(chart.series):
        slot = slots.get(series.name, number)
        colour, style = _colour(slot), "-" if slot < SLOTS else (0, (4, 2))
        shift = (number - (count - 1) / 2) * 0.6 / max(count, 4) if chart.categories else 0.0
        if not chart.categories and len(series.line) > 1:
            axes.plot(*zip(*series.line, strict=True), color=colour, linewidth=1.4, linestyle=style, alpha=0.8)
        for dot in series.dots:
            _dot(axes, dot, dot.x + shift, colour, _marker(slot)[0], links)
    if chart.categories:
        axes.set_xticks(range(len(chart.categories)), chart.categories)
        axes.set_xlim(-0.6, len(chart.categories) - 0.4)
    else:
        _ticks(axes, chart)
    return links


def _dot(axes: Axes, dot: Dot, x: float, colour: str, marker: str, links: list[tuple[str, str]]) -> None:
    if dot.high > dot.low:
        axes.plot([x, x], [dot.low, dot.high], color=colour, linewidth=1, alpha=0.7)
        if dot.capped:
            axes.plot([x], [dot.high], color=colour, marker="_", markersize=8, linestyle="none", alpha=0.9)
    face = _GREY if dot.limited else _PAPER if dot.open else colour
    drawn = axes.scatter(
        [x], [dot.y], s=70 if dot.limited else 34, marker="s" if dot.limited else marker, facecolor=face,
        edgecolor=colour, linewidth=1.4, hatch="//////" if dot.limited else None, zorder=3,
    )  # fmt: skip
    drawn.set_urls([_link(links, dot.run, dot.label)])


def _bars(axes: Axes, chart: Chart, slots: Mapping[str, int]) -> list[tuple[str, str]]:
    """Draw one bar per record, subjects from top to bottom, with the value at its end."""
    links: list[tuple[str, str]] = []
    rows: list[tuple[str, int, Dot]] = [
        (series.name, slots.get(series.name, number), dot)
        for number, series in enumerate(chart.series)
        for dot in series.dots
    ]
    for row, (_, slot, dot) in enumerate(rows):
        colour = _colour(slot)
        bar = axes.barh(
            row, dot.y, height=0.6, color=_GREY if dot.limited else _PAPER if dot.open else colour, edgecolor=colour,
            hatch="//////" if dot.limited else None, linewidth=1.2,
        )  # fmt: skip
        bar[0].set_url(_link(links, dot.run, dot.label))
        if dot.high > max(dot.y, dot.low):
            axes.plot([dot.low, dot.high], [row, row], color=_INK, linewidth=1)
        axes.annotate(dot.shown, (max(dot.y, dot.high), row), xytext=(4, 0), textcoords="offset points",
                      va="center", fontsize=8, color=_INK)  # fmt: skip
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.25 * max((max(dot.y, dot.high) for _, _, dot in rows), default=1) or 1)
    axes.set_xlabel(chart.unit)
    axes.grid(axis="y", visible=False)
    return links


def _ticks(axes: Axes, chart: Chart) -> None:
    """Put ticks at the values that were measured, on a linear axis only where there is room."""
    from matplotlib.ticker import NullLocator

    values = sorted({dot.x for series in chart.series for dot in series.dots})
    if chart.linear:
        kept = values[:1]
        for value in values:
            if value - kept[-1] >= (values[-1] - values[0]) / 6:
                kept.append(value)
        values = kept
    elif len(values) > 1:
        axes.set_xscale("log", base=2)
    axes.set_xticks(values, [f"{v:g}" if chart.x_label == "users" else show_tokens(int(v)) for v in values])
    axes.xaxis.set_minor_locator(NullLocator())


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise fail("charts-missing", "a report needs matplotlib, which is not installed",
                   "pip install 'lcplan[charts]'") from None  # fmt: skip
    with rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.add_subplot()
    axes.patch.set_visible(False)
    axes.set_axisbelow(True)
    return figure, axes


_STYLE: Any = {
    "text.color": _INK, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK, "axes.edgecolor": _GRID,
    "axes.grid": True, "grid.color": _GRID, "grid.linewidth": 0.7, "axes.spines.top": False,
    "axes.spines.right": False, "font.size": 9, "axes.labelsize": 9, "xtick.labelsize": 8, "ytick.labelsize": 8,
    "xtick.major.size": 0, "ytick.major.size": 0,
}  # fmt: skip


def _colour(slot: int) -> str:
    return f"#0505{slot % SLOTS:02x}"


def _link(links: list[tuple[str, str]], run: str, label: str) -> str:
    links.append((f"#run-{run}", label))
    return f"{_POINT}{len(links) - 1}"


def _inline(figure: Figure, name: str, title: str, links: Sequence[tuple[str, str]]) -> str:
    """Return a figure as SVG to stand in a page: no prolog, ids of its own, colours by variable, links with names."""
    from matplotlib import rc_context

    out = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "hatch.linewidth": 0.8}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<(metadata|style)\b.*?</\1>", "", text, flags=re.S)  # its style would hold for the whole page
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"([^>]*?) width="[^"]*"', r"\1\2", text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"([^>]*?) height="[^"]*"', r"\1\2", text)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    text = re.sub(rf'<a xlink:href="{_POINT}(\d+)"[^>]*>', lambda found: _anchor(*links[int(found[1])]), text)
    label = f'<title id="{name}-title">{escape(title)}</title>'
    return re.sub(r"<svg([^>]*)>", rf'<svg\1 role="group" aria-labelledby="{name}-title">{label}', text, count=1)


def _anchor(href: str, label: str) -> str:
    return f'<a href="{escape(href)}" aria-label="{escape(label)}"><title>{escape(label)}</title>'
