"""An apply as it runs: a live table on a terminal, else plain lines, JSON lines with --json; and its closing report."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lcplan.apply.events import Sink
from lcplan.apply.executor import Outcome
from lcplan.base.units import show_seconds
from lcplan.plan.model import Plan


@contextmanager
def sink_for(plan: Plan, as_json: bool) -> Iterator[Sink]:
    """Give the function that shows events, for the kind of output this is."""
    if as_json:
        yield _json_line
    elif sys.stdout.isatty():
        from rich.console import Console
        from rich.live import Live

        table = LiveTable(plan)
        with Live(console=Console(), get_renderable=table.render, refresh_per_second=4, transient=False):
            yield table.take
    else:
        yield Lines().take


def closing(outcome: Outcome) -> str:
    """Return the report at the end: done, and everything else by name."""
    lines = [f"done: {outcome.done} cells measured" + (f", {outcome.skipped} were recorded" if outcome.skipped else "")]
    for word, some in (
        ("invalid", outcome.invalid), ("failed", outcome.failed), ("blocked", outcome.blocked),
        ("interrupted", outcome.interrupted), ("not run", outcome.not_run),
    ):  # fmt: skip
        if some:
            lines += [f"{word}: {len(some)}", *[f"  {one}" for one in some]]
    lines += [f"! {sentence}" for sentence in outcome.sentences]
    lines += [f"sealed: {run}" for run in outcome.runs]
    lines += [f"serve entry {one}" for one in outcome.serves]
    return "\n".join(lines)


class Lines:
    """Plain lines, one per thing that happened."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def take(self, event: dict[str, Any]) -> None:
        """Show one event."""
        text = describe(event)
        if text:
            sys.stdout.write(f"[{time.monotonic() - self._started:7.1f} s] {text}\n")
            sys.stdout.flush()


class LiveTable:
    """One row per launch: stage, cells done, elapsed, ETA, last word."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._rows: dict[str, dict[str, Any]] = {}

    def take(self, event: dict[str, Any]) -> None:
        """Take one event into the table."""
        if event["event"] == "start":
            for one in event["launches"]:
                self._rows[one["launch"]] = {**one, "stage": "waiting", "done": 0, "last": "", "began": None}
            for name in event["serves"]:
                self._rows[name] = {"quads": [], "stage": "waiting", "last": "", "began": None}
            return
        row = self._rows.get(event.get("launch") or f"serve/{event.get('serve')}")
        if row is None:
            return
        if event["event"] == "step":
            row["began"] = row["began"] or time.monotonic()
            row["stage"] = f"{event['op']} {event['cell']}" if event["cell"] else event["op"]
        elif event["event"] == "serve":
            row["began"], row["stage"] = row["began"] or time.monotonic(), event["what"]
            if event["what"] in ("ready", "kept", "left"):
                row["ended"] = time.monotonic()
        elif event["event"] == "cell":
            row["done"] += 1
        elif event["event"] == "sealed":
            row["stage"], row["ended"] = "sealed", time.monotonic()
        if event["event"] in ("step", "serve", "sealed"):
            return  # the stage says it
        told = describe(event).removeprefix(event.get("run") or "").lstrip("/: ")
        row["last"] = told or row["last"]

    def render(self) -> Any:
        """Return the table as it stands."""
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for name in ("launch", "quad", "stage", "cells", "elapsed", "ETA", "last"):
            table.add_column(name, no_wrap=True, overflow="ellipsis")
        now = time.monotonic()
        for name, row in self._rows.items():
            elapsed = (row.get("ended") or now) - row["began"] if row["began"] else None
            timed = elapsed is not None and "ended" not in row and "seconds" in row
            eta = max(0.0, row["seconds"] - (elapsed or 0.0)) if timed else None
            table.add_row(
                name, "+".join(row["quads"]), row["stage"], f"{row['done']}/{row['cells']}" if "cells" in row else "",
                show_seconds(elapsed) if elapsed is not None else "", show_seconds(eta) if eta is not None else "",
                row["last"],
            )  # fmt: skip
        return table


def describe(event: dict[str, Any]) -> str:
    """Return the line of an event, "" for events that need none."""
    kind, run = event["event"], event.get("run") or event.get("launch") or ""
    if kind == "step" and event["op"] in ("launch", "ready", "measure", "stop"):
        return f"{run}: {event['op']}" + (f" {event['cell']}" if event["cell"] else "")
    if kind == "cell":
        shown = ", ".join(
            f"{name} {metric['value']:.4g}" for name, metric in list(event["metrics"].items())[:4]
            if isinstance(metric.get("value"), (int, float))
        )  # fmt: skip
        return f"{run}/{event['cell']}: {event['status']}" + (f" ({event['sentence'] or shown})"
                                                              if event["sentence"] or shown else "")  # fmt: skip
    if kind == "failed":
        return f"{run}: {event['op']} failed [{event['class']}]: {event['sentence']}" + (
            f" hint: {event['hint']}" if event["hint"] else ""
        )
    if kind == "warning":
        return f"{run}: warning [{event['code']}]: {event['sentence']}"
    if kind == "simulator":
        return f"{run}: the server is lcplan's simulator; the run is recorded as simulated"
    if kind == "log":
        return f"{run}: {event['line']}"
    if kind == "serve":
        return f"serve entry {event['serve']}: {event['what']}" + (
            f", {event['sentence']}" if event["sentence"] else ""
        )
    if kind == "sealed":
        return f"{run}: sealed"
    if kind == "recovering":
        return f"{run}: left by an apply that was killed; {event['done']} cells of it are kept"
    if kind == "orphan":
        return f"{run}: ended {event['what']}, which no apply accounts for"
    if kind == "stopping":
        return "stopping now" if event["now"] else "finishing the running cells, then stopping; again to stop now"
    return ""


def _json_line(event: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(event, ensure_ascii=False) + "\n")
    sys.stdout.flush()
