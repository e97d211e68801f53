"""Views of capacity: the calculator's prediction, and the tables of what fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lcplan.base.units import show_tokens
from lcplan.capacity.predict import Prediction

_WIDEST = 400


def prediction_text(prediction: Prediction, fits: Mapping[int, int | None], width: int = 100) -> str:
    """Return a prediction for people: the parts of a rank's memory, the pool, and what fits at some lengths."""
    from rich.table import Table

    parts = Table(title="One rank's memory", title_justify="left", box=None, pad_edge=False)
    parts.add_column("part")
    parts.add_column("GiB", justify="right")
    for name, value in prediction.parts.items():
        if name.endswith("_gib"):
            parts.add_row(name.removesuffix("_gib").replace("_", " "), f"{value:,.2f}")
    lines = [_rendered(parts, width).rstrip(), ""]
    if prediction.pool_tokens is None:
        return "\n".join([*lines, "pool: known after launch"]) + "\n"
    low, high = prediction.interval or (prediction.pool_tokens, prediction.pool_tokens)
    span = f" (between {low:,} and {high:,})" if low != high else ""
    lines.append(f"pool: {prediction.pool_tokens:,} tokens per engine{span}, engines: {prediction.engines}")
    if prediction.bytes_per_token is not None:
        lines.append(f"bytes per token: {prediction.bytes_per_token:,.0f} on each rank")
    if prediction.concurrency is not None and prediction.max_model_len:
        lines.append(
            f"concurrency at {show_tokens(prediction.max_model_len)}: {prediction.concurrency:.2f}x per engine"
        )
    if fits:
        lengths = Table(title="Sequences that fit", title_justify="left", box=None, pad_edge=False)
        for length in fits:
            lengths.add_column(show_tokens(length), justify="right")
        lengths.add_row(*("-" if count is None else f"{count:,}" for count in fits.values()))
        lines += ["", _rendered(lengths, width).rstrip()]
    return "\n".join(lines) + "\n"


def tables_text(tables: Mapping[str, Any], width: int = 120) -> str:
    """Return the tables of `lcplan.capacity.table.table` for people: what fits per length, then the limited points."""
    from rich.table import Table

    lengths: Sequence[int] = tables["lengths"]
    fits = Table(title="Max sequences that fit at each context length", title_justify="left", box=None, pad_edge=False)
    for name in ("stack", "layout", "pool", "from", "cap"):
        fits.add_column(name, justify="right" if name in ("pool", "cap") else "left", no_wrap=True)
    for length in lengths:
        fits.add_column(show_tokens(length), justify="right", no_wrap=True)
    limited = Table(title="Points with more users than fit", title_justify="left", box=None, pad_edge=False)
    for name in ("stack", "workload", "length", "users", "effective", "limit", "from"):
        limited.add_column(name)
    for stack in tables["stacks"]:
        name = stack["stack"] + (f"+{stack['variant']}" if stack["variant"] else "")
        pool = "?" if stack["pool_tokens"] is None else f"{stack['pool_tokens']:,} x {stack['engines']}"
        cells = [_cell(stack["at"][str(length)], stack["cap"]) for length in lengths]
        fits.add_row(name, stack["layout"], pool, _source(stack), _cell(stack["cap"]), *cells)
        for point in stack["points"]:
            if point["limited"]:
                shown = (point["workload"], show_tokens(point["length"]), str(point["users"]))
                limit = "cap" if point["effective"] == point["cap"] else point["limit"]
                source = point["cap_source"] if limit == "cap" else f"{point['pool_source']}, {point['by']}"
                limited.add_row(name, *shown, _cell(point["effective"]), limit, source)
    # A number that is cut is worse than a line that a narrow terminal wraps.
    text = _rendered(fits, max(width, _WIDEST))
    return text + "\n" + _rendered(limited, width) if limited.row_count else text


def _source(stack: Mapping[str, Any]) -> str:
    if stack["pool_tokens"] is None:
        return "known after launch"
    return str(stack["pool_source"]) + (" (simulated)" if stack.get("simulated") else "")


def _cell(value: int | str | None, cap: int | None = None) -> str:
    """Return a number, `-` for none, and for an unknown one its upper bound where the cap gives one."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else "?" if cap is None else f"≤{cap:,}"


def _rendered(table: Any, width: int) -> str:
    from io import StringIO

    from rich.console import Console

    out = StringIO()
    Console(file=out, width=width, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
