"""A stretch of a measurement between two readings of the counters, and the figures made of such stretches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lcplan.engine.dialect import Counters
from lcplan.workload.exchange import Record
from lcplan.workload.job import Cell, Job
from lcplan.workload.stats import median
from lcplan.workload.validity import Evidence, Verdict, judge


@dataclass(slots=True)
class Segment:
    """Records with what the engine counted meanwhile: a grid point, one depth of a needle, one turn of a ramp.

    `waiting` and `kv_usage` (0 to 1) are the highest seen. `loose` allows the lengths of a benchmark tool. `needles`
    are those found and those asked for, None where none was. `aside` was sent beside the load: it is judged like the
    load, but counts in no figure.
    """

    records: list[Record]
    before: Counters | None
    after: Counters | None
    counted: Counters
    waiting: float = 0.0
    kv_usage: float | None = None
    lag_ms: float | None = None
    loose: bool = False
    needles: tuple[int, int] | None = None
    aside: list[Record] = field(default_factory=list)

    @property
    def completed(self) -> list[Record]:
        """The requests that were answered in full."""
        return [r for r in self.records if not r.error and r.first is not None]

    @property
    def queued(self) -> int:
        """Requests seen waiting at once, and preemptions."""
        return round(self.waiting + (self.counted.preemptions or 0))

    @property
    def hit_rate_percent(self) -> float | None:
        """The share of looked-up prompt tokens that the prefix cache had."""
        queried, hit = self.counted.queried, self.counted.hit
        return 100.0 * hit / queried if queried and hit is not None else None

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """New prompt tokens of all requests over the time from the first one sent to the last first token.

        None where a user sent several: then decoding lies between the first one and the last.
        """
        if len({r.request.user for r in self.records}) < len(self.records):
            return None
        return _rate(self.completed, sum(r.request.new_tokens for r in self.completed), prefill=True)

    @property
    def output_tokens_per_s(self) -> float | None:
        """Generated tokens of all requests over the time from the first one sent to the last token."""
        return _rate(self.completed, sum(r.output_tokens or 0 for r in self.completed))

    @property
    def total_tokens_per_s(self) -> float | None:
        """Prompt and generated tokens over the same time."""
        tokens = sum((r.prompt_tokens or 0) + (r.output_tokens or 0) for r in self.completed)
        return _rate(self.completed, tokens)

    def verdict(self, job: Job) -> Verdict:
        """Return whether this stretch may stand as a measurement."""
        servers = max(1, len(job.metrics_urls))
        return judge(Evidence([*self.records, *self.aside], self.counted, servers, self.lag_ms, self.loose))

    def row(self, job: Job, cell: Cell) -> dict[str, Any]:
        """Return the row of `points.parquet` of this stretch."""
        judged = self.verdict(job)
        made = summary(self.records, cell)
        made |= {
            "prefill_tokens_per_s": self.prefill_tokens_per_s,
            "output_tokens_per_s": self.output_tokens_per_s,
            "total_tokens_per_s": self.total_tokens_per_s,
            "hit_rate_percent": self.hit_rate_percent,
            "kv_usage_percent": None if self.kv_usage is None else 100.0 * self.kv_usage,
            "needle_ok": self.needles[0] == self.needles[1] if self.needles and self.needles[1] else None,
            "queued": self.queued,
            **({"users": None} if "rate" in cell.workload else {}),
            "status": judged.status,
            "reason": judged.reason,
        }
        return made


@dataclass(slots=True)
class Findings:
    """What a kind of workload found: stretches, further samples by metric name, and rows that detail a stretch."""

    segments: list[Segment] = field(default_factory=list)
    samples: dict[str, Iterable[float | None]] = field(default_factory=dict)
    details: list[dict[str, Any]] = field(default_factory=list)

    @property
    def records(self) -> list[Record]:
        """All records, in the order of the stretches."""
        return [record for segment in self.segments for record in [*segment.records, *segment.aside]]

    def verdict(self, job: Job) -> Verdict:
        """Return the first stretch's verdict that is against it, or that all is well."""
        against = (judged for segment in self.segments if (judged := segment.verdict(job)).reason)
        return next(against, Verdict())

    def rows(self, job: Job, cell: Cell) -> list[dict[str, Any]]:
        """Return the rows of `points.parquet`: one a stretch with its own verdict, then the details with the cell's."""
        judged = self.verdict(job)
        standing = {"status": judged.status, "reason": judged.reason}
        return [segment.row(job, cell) for segment in self.segments] + [row | standing for row in self.details]


def summary(records: Sequence[Record], cell: Cell) -> dict[str, Any]:
    """Return what a row says of some records alone; a turn or depth that all share is named."""
    good = [r for r in records if not r.error and r.first is not None]
    return {
        "workload": cell.kind,
        "turn": _shared(r.request.turn for r in records),
        "depth": _shared(r.request.depth for r in records),
        "users": len({r.request.user for r in records}),
        "prompt_tokens": _shared(r.prompt_tokens for r in records) or median(r.prompt_tokens for r in good),
        "new_tokens": median(r.request.new_tokens for r in records),
        "output_tokens": median(r.output_tokens for r in good),
        "sent": len(records),
        "completed": len(good),
        "ttft_s": median(r.ttft_s for r in good),
        "ttft_min_s": min((r.ttft_s for r in good if r.ttft_s is not None), default=None),
        "ttft_max_s": max((r.ttft_s for r in good if r.ttft_s is not None), default=None),
        "tpot_ms": median(r.tpot_ms for r in good),
        "user_tokens_per_s": median(speed(r) for r in good),
        "e2e_s": median(r.e2e_s for r in good),
    }


def figures(segments: Sequence[Segment]) -> dict[str, Iterable[float | None]]:
    """Return the samples that every kind of workload has, by metric name: requests, then stretches."""
    good = [record for segment in segments for record in segment.completed]
    spec = [s.counted for s in segments if s.counted.draft_tokens]
    needles = [s.needles for s in segments if s.needles is not None and s.needles[1]]
    return {
        "ttft_s": [r.ttft_s for r in good],
        "tpot_ms": [r.tpot_ms for r in good],
        "user_tokens_per_s": [speed(r) for r in good],
        "e2e_s": [r.e2e_s for r in good],
        "prefill_tokens_per_s": [s.prefill_tokens_per_s for s in segments],
        "output_tokens_per_s": [s.output_tokens_per_s for s in segments],
        "total_tokens_per_s": [s.total_tokens_per_s for s in segments],
        "hit_rate_percent": [_hit_rate(segments)],
        "kv_usage_percent": [max((100.0 * s.kv_usage for s in segments if s.kv_usage is not None), default=None)],
        "acceptance_rate_percent": [100.0 * (c.accepted_tokens or 0.0) / (c.draft_tokens or 1.0) for c in spec],
        "acceptance_length_tokens": [1.0 + (c.accepted_tokens or 0.0) / (c.drafts or 1.0) for c in spec],
        "needles_found": [sum(found for found, _ in needles)] if needles else [],
        "needles_asked": [sum(asked for _, asked in needles)] if needles else [],
        "sent": [sum(len(s.records) for s in segments)],
        "completed": [len(good)],
    }


def speed(record: Record) -> float | None:
    """Return the tokens per second that the user of a request sees, 1000 / TPOT."""
    tpot = record.tpot_ms
    return 1000.0 / tpot if tpot else None


def _hit_rate(segments: Sequence[Segment]) -> float | None:
    queried = sum(s.counted.queried or 0.0 for s in segments)
    return 100.0 * sum(s.counted.hit or 0.0 for s in segments) / queried if queried else None


def _rate(records: Sequence[Record], tokens: int, *, prefill: bool = False) -> float | None:
    ends = [end for r in records if (end := r.first if prefill else r.last) is not None]
    seconds = (max(ends) - min(r.sent for r in records)) / 1e9 if ends else 0.0
    return tokens / seconds if seconds > 0 else None


def _shared(values: Iterable[Any]) -> Any:
    known = set(values)
    return known.pop() if len(known) == 1 else None
