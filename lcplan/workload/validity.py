"""Whether a row may stand as a measurement: one reason from a closed list, or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from lcplan.engine.dialect import Counters
from lcplan.workload.exchange import Record
from lcplan.workload.stats import median

MAX_HIT_PERCENT = 1.0
MAX_COLD_TOKENS_PER_S = 60_000.0
BENCH_LENGTH_SHARE = 0.005
BENCH_LENGTH_TOKENS = 8
_LAG_FLOOR_MS = 5.0  # less is what any shared machine does now and then
_LAG_SHARE = 0.01  # of the median TTFT: the error that the client may add
_FOREIGN_SHARE = 0.01
_FOREIGN_TOKENS = 4096  # health probes and warm-ups of the engine itself stay below this


class Reason(StrEnum):
    """Why a cell is invalid (measured, but not what was planned) or failed (not measured). The list is closed."""

    ALL_REQUESTS_FAILED = "all-requests-failed"
    SERVER_GONE = "server-gone"
    NO_TOKENIZE = "no-tokenize"
    BENCH_MISSING = "bench-missing"
    BENCH_FAILED = "bench-failed"
    BENCH_TIMEOUT = "bench-timeout"
    BAD_WORKLOAD = "bad-workload"
    INTERNAL_ERROR = "internal-error"
    REQUEST_FAILED = "request-failed"
    NO_USAGE = "no-usage"
    PROMPT_LENGTH = "prompt-length"
    OUTPUT_LENGTH = "output-length"
    FOREIGN_TRAFFIC = "foreign-traffic"
    CACHE_HITS = "cache-hits"
    TOO_FAST_FOR_COLD = "too-fast-for-cold"
    CLIENT_BOUND = "client-bound"

    @property
    def sentence(self) -> str:
        """What this reason means, in one sentence."""
        return _SENTENCES[self]

    @property
    def status(self) -> str:
        """`failed` when nothing was measured, `invalid` when what was measured is not what was planned."""
        return "failed" if self in _FAILED else "invalid"


_FAILED = {
    Reason.ALL_REQUESTS_FAILED,
    Reason.SERVER_GONE,
    Reason.NO_TOKENIZE,
    Reason.BENCH_MISSING,
    Reason.BENCH_FAILED,
    Reason.BENCH_TIMEOUT,
    Reason.BAD_WORKLOAD,
    Reason.INTERNAL_ERROR,
}

_SENTENCES = {
    Reason.ALL_REQUESTS_FAILED: "no request was answered in full",
    Reason.SERVER_GONE: "the server could not be reached",
    Reason.NO_TOKENIZE: "the server's /tokenize gave no tokens, so no needle fits into a prompt of exact length",
    Reason.BENCH_MISSING: "a sweep needs `vllm bench serve`, and no such command or image is available",
    Reason.BENCH_FAILED: "`vllm bench serve` left no result that can be read",
    Reason.BENCH_TIMEOUT: "`vllm bench serve` did not end in time",
    Reason.BAD_WORKLOAD: "the workload's definition cannot be measured",
    Reason.INTERNAL_ERROR: "the measuring process hit an error of its own",
    Reason.REQUEST_FAILED: "some requests failed",
    Reason.NO_USAGE: "the server gave no usage, so neither lengths nor speeds can be trusted",
    Reason.PROMPT_LENGTH: "the server counted another prompt length than planned",
    Reason.OUTPUT_LENGTH: "the server generated another number of tokens than asked for",
    Reason.FOREIGN_TRAFFIC: "the server processed prompts that this measurement did not send",
    Reason.CACHE_HITS: f"more than {MAX_HIT_PERCENT:g} % of the new prompt tokens came from the prefix cache",
    Reason.TOO_FAST_FOR_COLD: f"more than {MAX_COLD_TOKENS_PER_S:,.0f} new prompt tokens/s and no counter to prove it",
    Reason.CLIENT_BOUND: "the client itself was the bottleneck",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judgement: `reason` None means valid; `sentence` adds the figures to the reason's sentence."""

    reason: Reason | None = None
    sentence: str = ""

    @property
    def status(self) -> str:
        """`done`, `invalid` or `failed`."""
        return self.reason.status if self.reason else "done"


def verdict(reason: Reason, detail: str = "") -> Verdict:
    """Return the verdict of a reason, its sentence with a detail behind it."""
    return Verdict(reason, f"{reason.sentence}: {detail}" if detail else reason.sentence)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a judgement needs: records, what the counters counted meanwhile, on how many servers, the client's lag.

    `lag_ms` is the 90th percentile of how late the client's event loop ran, None when time is virtual or not ours.
    `loose` allows the prompt lengths that a benchmark tool makes of text.
    """

    records: Sequence[Record]
    counted: Counters
    servers: int = 1
    lag_ms: float | None = None
    loose: bool = False


def judge(evidence: Evidence) -> Verdict:
    """Return the first reason against a row, the gravest first."""
    for check in (_failures, _lengths, _foreign, _cold, _client):
        found = check(evidence)
        if found.reason:
            return found
    return Verdict()


def _failures(evidence: Evidence) -> Verdict:
    failed = [r for r in evidence.records if r.error]
    if not failed and evidence.records:
        return Verdict()
    first = failed[0].error or "" if failed else "nothing was sent"
    if len(failed) < len(evidence.records):
        return verdict(Reason.REQUEST_FAILED, f"{len(failed)} of {len(evidence.records)}, the first with: {first}")
    gone = failed and all(r.unreachable for r in failed)
    return verdict(Reason.SERVER_GONE if gone else Reason.ALL_REQUESTS_FAILED, first)


def _lengths(evidence: Evidence) -> Verdict:
    for record in evidence.records:
        planned, seen, made = record.request.prompt_tokens, record.prompt_tokens, record.output_tokens
        if seen is None or made is None:
            return verdict(Reason.NO_USAGE)
        room = max(BENCH_LENGTH_TOKENS, planned * BENCH_LENGTH_SHARE) if evidence.loose else 0
        if abs(seen - planned) > room:
            return verdict(Reason.PROMPT_LENGTH, f"{seen:,} instead of {planned:,} tokens")
        if record.request.forced and made != record.request.output_tokens:
            return verdict(Reason.OUTPUT_LENGTH, f"{made:,} instead of {record.request.output_tokens:,} tokens")
    return Verdict()


def _foreign(evidence: Evidence) -> Verdict:
    queried, preempted = evidence.counted.queried, evidence.counted.preemptions
    sent = sum(r.prompt_tokens or r.request.prompt_tokens for r in evidence.records) * evidence.servers
    if queried is None or preempted or queried <= sent * (1 + _FOREIGN_SHARE) + _FOREIGN_TOKENS:
        return Verdict()
    return verdict(Reason.FOREIGN_TRAFFIC, f"{queried:,.0f} prompt tokens counted, {sent:,} sent")


def _cold(evidence: Evidence) -> Verdict:
    records = evidence.records
    new = sum(r.request.new_tokens for r in records)
    again = sum(r.request.prompt_tokens - r.request.new_tokens for r in records)
    queried, hit = evidence.counted.queried, evidence.counted.hit
    if queried and hit is not None:
        excess = 100.0 * (hit - again) / new
        if excess > MAX_HIT_PERCENT:
            return verdict(Reason.CACHE_HITS, f"{hit - again:,.0f} of {new:,} tokens, {excess:.1f} %")
        return Verdict()
    firsts = [r.first for r in records if r.first is not None]
    seconds = (max(firsts) - min(r.sent for r in records)) / 1e9 if firsts else 0.0
    if seconds > 0 and new / seconds > MAX_COLD_TOKENS_PER_S:
        return verdict(Reason.TOO_FAST_FOR_COLD, f"{new / seconds:,.0f} tokens/s")
    return Verdict()


def _client(evidence: Evidence) -> Verdict:
    ttft = median(r.ttft_s for r in evidence.records)
    if evidence.lag_ms is None or ttft is None:
        return Verdict()
    limit = max(_LAG_FLOOR_MS, ttft * 1e3 * _LAG_SHARE)
    if evidence.lag_ms <= limit:
        return Verdict()
    return verdict(Reason.CLIENT_BOUND, f"its event loop ran {evidence.lag_ms:.1f} ms late, {limit:.1f} ms are allowed")


class CannotMeasure(Exception):
    """Raised while a cell is measured: it fails, for a reason of the closed list."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(detail)
        self.verdict = verdict(reason, detail)
