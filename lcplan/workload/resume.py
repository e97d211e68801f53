"""Turns already measured, saved one by one, so that a conversation of many hours survives a crash of apply."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lcplan.base.files import write_atomic
from lcplan.engine.dialect import Counters
from lcplan.workload.exchange import as_plain, from_plain
from lcplan.workload.segment import Segment

if TYPE_CHECKING:
    from lcplan.workload.measurement import Measurement


def save(m: Measurement, segments: list[Segment]) -> None:
    """Save all turns so far, durably. Raises OSError."""
    lines = [{"attempt": m.identity.attempt, "fingerprint": m.cell.fingerprint, "segment": _plain(s)} for s in segments]
    write_atomic(_file(m), "".join(json.dumps(line) + "\n" for line in lines))


def load(m: Measurement, turns: int) -> list[Segment]:
    """Return the turns saved by an earlier attempt at this cell in this run, [] when there is nothing to go on from.

    The measurement takes over that attempt's identity, so that the prompts to come continue those already sent. When
    any turn is not valid all are measured again, with prompts of their own: parts of the old ones are in the cache.
    """
    try:
        lines = [json.loads(line) for line in _file(m).read_text().splitlines()]
        segments = [_segment(line["segment"]) for line in lines if line["fingerprint"] == m.cell.fingerprint][:turns]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    if not segments or any(segment.verdict(m.job).reason for segment in segments):
        return []
    m.adopt(lines[0]["attempt"], segments)
    return segments


def _file(m: Measurement) -> Path:
    return m.job.folder / "parts" / f"{m.cell.name}.turns.jsonl"


def _plain(segment: Segment) -> dict[str, Any]:
    return asdict(segment) | {"records": [as_plain(record) for record in segment.records]}


def _segment(plain: dict[str, Any]) -> Segment:
    made = plain | {"records": [from_plain(r) for r in plain["records"]], "counted": Counters(**plain["counted"])}
    for name in ("before", "after"):
        made[name] = Counters(**plain[name]) if plain[name] is not None else None
    return Segment(**made)
