"""Measuring one cell: warm up, let its kind of workload run, judge, write everything down, report."""

from __future__ import annotations

import traceback
from datetime import UTC, datetime
from typing import Any

from lcplan.workload import counting, parts, stats
from lcplan.workload.client import sequence
from lcplan.workload.job import BadMessage, Cell
from lcplan.workload.kinds import KINDS
from lcplan.workload.measurement import Measurement, Session
from lcplan.workload.segment import Findings, figures
from lcplan.workload.validity import CannotMeasure, Reason, Verdict, verdict

_WARM_UP_PROMPT = 32 * 1024
_WARM_UP_OUTPUT = 16


async def measure(session: Session, cell: Cell) -> dict[str, Any]:
    """Measure a cell and return its result event; its raw data lies in the folder of the run before this returns.

    Raises OSError when it cannot be written.
    """
    started, clock = datetime.now(UTC), session.clock
    measurement = Measurement(session, cell, parts.next_attempt(session.job, cell))
    findings, failure = await _findings(measurement)
    judged = failure or findings.verdict(session.job)
    rows = findings.rows(session.job, cell)
    queued = sum(segment.queued for segment in findings.segments)
    parts.write(session.job, cell, findings.records, rows)
    _keep_pages(measurement)
    first = findings.segments[0].before if findings.segments else None
    last = findings.segments[-1].after if findings.segments else None
    delta = counting.difference(counting.Snapshot("", first), counting.Snapshot("", last))
    return {
        "event": "result",
        "cell": cell.name,
        "fingerprint": cell.fingerprint,
        "repeat": cell.repeat,
        "attempt": cell.attempt,
        "status": judged.status,
        "reason": judged.reason,
        "sentence": judged.sentence,
        "metrics": stats.metrics(figures(findings.segments) | findings.samples),
        "counters": {name: counting.as_json(c) for name, c in (("before", first), ("after", last), ("delta", delta))},
        "rows": rows,
        "queued": queued,
        "marks": ["queued"] if queued else [],
        "seeds": {"salt": measurement.identity.salt("seed").hex(), "seed": measurement.identity.seed()},
        "started": _stamp(started),
        "ended": _stamp(datetime.now(UTC)),
        "virtual_s": (session.clock - clock) / 1e9 if session.job.simulated else None,
        "simulated": session.job.simulated or any(r.simulated for r in findings.records),
    }


async def _findings(measurement: Measurement) -> tuple[Findings, Verdict | None]:
    cell = measurement.cell
    try:
        if cell.kind not in KINDS:
            raise CannotMeasure(Reason.BAD_WORKLOAD, f"there is no kind of workload '{cell.kind}'")
        await _warm_up(measurement)
        return await KINDS[cell.kind](measurement), None
    except CannotMeasure as error:
        return Findings(), error.verdict
    except BadMessage as error:
        return Findings(), verdict(Reason.BAD_WORKLOAD, str(error))
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return Findings(), verdict(
            Reason.INTERNAL_ERROR, f"{type(error).__name__}: {error} ({at.name}, line {at.lineno})"
        )


async def _warm_up(measurement: Measurement) -> None:
    """Send one prompt of this shape, cut at 32K and thrown away, so that no kernel is compiled later."""
    session, tokens = measurement.session, min(_longest(measurement.cell), _WARM_UP_PROMPT)
    if tokens in session.warmed:
        return
    measurement.progress(f"warming up with {tokens:,} tokens")
    aside = Measurement(session, Cell("warm-up", "", {}), measurement.identity.attempt)
    label = str(tokens)
    request = aside.request(aside.prompt(label, tokens), _WARM_UP_OUTPUT, label=label)
    [record] = await session.client.closed_loop([sequence([request])], session.clock)
    if record.unreachable:
        raise CannotMeasure(Reason.SERVER_GONE, record.error or "")
    session.clock = max(session.clock, record.last or 0) if session.job.simulated else 0
    session.warmed.add(tokens)


def _longest(cell: Cell) -> int:
    turns = cell.workload.get("turns")
    if isinstance(turns, list):
        return max((n for n in turns if isinstance(n, int)), default=1)
    return cell.count("history") if "history" in cell.workload else cell.count("prompt")


def _keep_pages(measurement: Measurement) -> None:
    """Keep the first and the last metrics page of a cell; they are made durable with the run."""
    pages = [page for page in measurement.pages if page]
    if len(pages) < 2:
        return
    folder = measurement.job.folder / "metrics"
    folder.mkdir(exist_ok=True)
    for name, page in (("before", pages[0]), ("after", pages[-1])):
        (folder / f"{measurement.cell.name}.{name}.txt").write_text(page)


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
