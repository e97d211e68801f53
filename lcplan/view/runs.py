"""Runs, their cells and their differences, as text."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lcplan.audit.bundle import Bundled
    from lcplan.audit.diff import Difference
    from lcplan.audit.listing import Listed

HEADLINES = ("ttft_s", "prefill_tokens_per_s", "tpot_ms", "user_tokens_per_s", "total_tokens_per_s", "needles_found")


def list_text(runs: Sequence[Listed]) -> str:
    """Return one line per run: id, status, standing, cells by status."""
    if not runs:
        return "no runs are recorded"
    rows = [["run", "status", "standing", "cells", "done"]]
    for one in runs:
        done = sum(cell["status"] == "done" for cell in one.cells)
        rows.append([str(one.predicate["run"]), one.status, one.standing.word, str(len(one.cells)), str(done)])
    return table(rows)


def show_text(one: Listed) -> str:
    """Return one run: what it was, and its cells with their figures."""
    run = one.predicate
    why = one.standing.retracted or one.standing.provisional
    facts = [
        ["status", f"{one.status}, {one.standing.word}{f' ({why})' if why else ''}"],
        ["stack", str(run.get("stack")) + (f", variant {run['variant']}" if run.get("variant") else "")],
        ["layout", f"{run.get('layout')}, quad {run.get('quad') or '(whole node)'}, context {run.get('context')}"],
        ["runtime", str(run.get("runtime"))],
        ["times", ", ".join(f"{name} {stamp}" for name, stamp in (run.get("times") or {}).items())],
    ]
    cells = [[str(cell["cell"]), str(cell["status"]), figures_text(cell)] for cell in one.cells]
    return f"{run['run']}\n{table(facts, indent=2)}\n\n{table(cells, indent=2)}"


def diff_text(a: str, b: str, differences: Sequence[Difference]) -> str:
    """Return the differences of two runs in words, settings before results."""
    head = f"A {a}\nB {b}"
    if not differences:
        return f"{head}\nno differences"
    return "\n".join([head, *(f"  {difference.sentence}" for difference in differences)])


def bundled_text(made: Bundled) -> str:
    """Return what a bundle holds and what could not be taken along."""
    lines = [f"wrote {made.path}: {made.files} files, {made.bytes / 1e6:,.1f} MB"]
    lines += [f"not in it, because the records no longer hold it: {', '.join(made.missing)}"] if made.missing else []
    return "\n".join(lines)


def invalid_csv(rows: Sequence[Mapping[str, str]]) -> str:
    """Return `invalid_rows.csv`: run, cell, status, reason, sentence."""
    out = io.StringIO()
    writer = csv.DictWriter(out, ["run", "cell", "status", "reason", "sentence"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def invalid_text(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the cells that are no results, one line each."""
    shown = [[row["status"], f"{row['run']}/{row['cell']}", row["sentence"] or row["reason"]] for row in rows]
    return table(shown) if rows else "no invalid rows"


def figures_text(cell: Mapping[str, Any]) -> str:
    """Return the headline figures of a cell in one line, or why there are none."""
    metrics = cell.get("metrics") or {}
    chosen = [name for name in HEADLINES if name in metrics] or list(metrics)[:4]
    shown = [f"{name} {_plain(metrics[name].get('value'))} {metrics[name].get('unit', '')}".rstrip() for name in chosen]
    shown += [f"queued {cell['queued']}"] if cell.get("queued") else []
    over = cell.get("capacity") or {}
    shown += [f"capacity-limited, {over['effective']} fit"] if over.get("limited") else []
    why = cell.get("sentence") or cell.get("reason") or ""
    return "; ".join(filter(None, [", ".join(shown), "" if cell.get("status") == "done" else str(why)])) or "no figures"


def table(rows: Sequence[Sequence[str]], indent: int = 0) -> str:
    """Return rows as aligned columns."""
    if not rows:
        return ""
    widths = [max(len(row[n]) for row in rows if n < len(row)) for n in range(max(map(len, rows)))]
    pad = " " * indent
    return "\n".join(
        (pad + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=False))).rstrip() for row in rows
    )


def _plain(value: Any) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
