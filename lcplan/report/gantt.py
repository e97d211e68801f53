"""What ran where and when, as the runs' own records tell it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lcplan.base.units import show_seconds
from lcplan.report.campaign import Campaign


@dataclass(frozen=True, slots=True)
class Bar:
    """One run: seconds (or hours, as the chart says) from the first start; `said` tells it in words."""

    run: str
    subject: str
    lanes: tuple[str, ...]
    start: float
    ready: float
    end: float
    said: str


@dataclass(frozen=True, slots=True)
class Gantt:
    """The runs of one plan on their quads."""

    plan: str
    lanes: tuple[str, ...]
    bars: tuple[Bar, ...]
    x_label: str
    simulated: bool


def gantt(campaign: Campaign) -> Gantt | None:
    """Return the runs of the plan that ran last (or of the campaign's, if it follows one); None without known times.

    The times of a rehearsal are those of the wall: virtual seconds of cells do not add up to a clock.
    """
    timed = [
        one.predicate for one in campaign.runs if _stamp(one.predicate, "started") and _stamp(one.predicate, "ended")
    ]
    if not timed:
        return None
    last = max(timed, key=lambda run: str(run["times"]["started"]))
    wanted = campaign.plan or _plan(last)
    chosen = sorted((run for run in timed if _plan(run) == wanted), key=lambda run: str(run["times"]["started"]))
    if not chosen:
        return None
    zero = min(_stamp(run, "started") for run in chosen)
    whole = max(_stamp(run, "ended") for run in chosen) - zero
    unit, factor = ("h", 3600.0) if whole > 2 * 3600 else ("min", 60.0) if whole > 300 else ("s", 1.0)
    bars = tuple(_bar(run, campaign.subject(run), zero, factor) for run in chosen)
    simulated = any(run["simulated"] for run in chosen)
    speeds = sorted({f"{run['speed']:g}" for run in chosen if run.get("speed")})
    paced = f", wall time of a rehearsal paced {', '.join(speeds)} times faster" if speeds else ""
    return Gantt(wanted, tuple(sorted({lane for bar in bars for lane in bar.lanes})), bars,
                 f"{unit} since the first start{paced}", simulated)  # fmt: skip


def _bar(run: Mapping[str, Any], subject: str, zero: float, factor: float) -> Bar:
    start, end = _stamp(run, "started"), _stamp(run, "ended")
    ready = min(_stamp(run, "ready") or end, end)
    said = f"{show_seconds(ready - start)} to ready, {show_seconds(end - ready)} after it"
    placed = run.get("placement") or {}
    node = placed.get("node") or (run.get("node") or {}).get("name") or "node"
    lanes = tuple(f"{node}/{quad}" for quad in placed.get("quads") or [run.get("quad") or "all"])
    return Bar(str(run["run"]), subject, lanes, (start - zero) / factor, (ready - zero) / factor,
               (end - zero) / factor, said)  # fmt: skip


def _plan(run: Mapping[str, Any]) -> str:
    return str((run.get("plan") or {}).get("id") or "")


def _stamp(run: Mapping[str, Any], name: str) -> float:
    """Return a time of a run in seconds since the epoch, 0 when it is not known."""
    try:
        return datetime.fromisoformat(str((run.get("times") or {})[name])).timestamp()
    except (KeyError, ValueError):
        return 0.0
