"""/metrics of SGLang 0.5.21 (metrics_collector.py), and the batch lines of its log.

Series that a real server lacks before their first event are absent here too. The warm-up request counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from lcplan.sim.metrics import Histogram, Labels, family, histogram
from lcplan.sim.rank import Rank, Sequence, Watch

if TYPE_CHECKING:
    from lcplan.sim.launch import Launch
    from lcplan.sim.sglang_log import SglangLog

WARM_PROMPT, WARM_OUTPUT, WARM_S = 28, 8, 15.0
_TTFT = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
_E2E = (*_TTFT, 600, 1200, 1800, 2400)
_GAP = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08),
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8),
)
_QUEUE = (0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 20, 30, 50, 100, 200, 500, 1000, 2000, 3000)
_TOKENS = (
    100,
    300,
    500,
    700,
    1e3,
    2e3,
    4e3,
    6e3,
    8e3,
    1e4,
    2e4,
    3e4,
    4e4,
    6e4,
    8e4,
    1e5,
    2e5,
    4e5,
    6e5,
    8e5,
    1e6,
    1.1e6,
)
_DECODE_LOG_STEPS = 40


class SglangMetrics(Watch):
    """Counters and histograms of all ranks, batch lines, and the text of a scrape."""

    def __init__(self, launch: Launch, log: SglangLog) -> None:
        self.launch = launch
        self.log = log
        self.requests: Counter[tuple[str, str]] = Counter()
        self.responses: Counter[tuple[str, str, str]] = Counter()
        self.finished: dict[bool, dict[str, float]] = {}
        self.ttft: dict[bool, Histogram] = {}
        self.e2e: dict[bool, Histogram] = {}
        self.gaps = Histogram(_GAP)
        self.queue = Histogram(_QUEUE)
        self.prompts, self.uncached, self.generated = Histogram(_TOKENS), Histogram(_TOKENS), Histogram(_TOKENS)
        self.cached = 0
        self.aborted = 0
        self.throughput = 0.0
        self.hit_rate = 0.0
        self._steps = 0
        self._steps_tokens = 0
        self._steps_since = 0.0

    def warm_up(self, rank: Rank) -> None:
        """Count the warm-up request."""
        self._finish(False, WARM_PROMPT, 0, WARM_OUTPUT)
        self.ttft.setdefault(False, Histogram(_TTFT)).observe(WARM_S)
        self.e2e.setdefault(False, Histogram(_E2E)).observe(WARM_S)
        rank.totals.computed += WARM_PROMPT
        rank.totals.generated += WARM_OUTPUT

    def probe(self, rank: Rank) -> None:
        """Count a health probe: one token in, one token out, in the live counters only."""
        rank.totals.computed += 1
        rank.totals.generated += 1
        self.log.prefill(rank.index, 1, 1, 0, rank.pool.used / max(1, rank.pool.capacity), 0, 0, 1.0)

    def chunk(self, rank: Rank, seq: Sequence, size: int, now: float) -> None:
        """Write the line of a prefill batch."""
        first = seq.computed - seq.cached == size
        rate = size / max(1e-6, now - rank.began_at)
        self.hit_rate = seq.cached / seq.tokens if first else 0.0
        used = rank.pool.used / max(1, rank.pool.capacity)
        cached = seq.cached if first else 0
        self.log.prefill(rank.index, 1, size, cached, used, len(rank.decoding), len(rank.waiting), rate)

    def decode(self, rank: Rank, sequences: int, now: float) -> None:
        """Write a line every forty decode steps."""
        gain = sum(rank.gains) / len(rank.gains)
        self._steps += 1
        self._steps_tokens += sequences
        if self._steps % _DECODE_LOG_STEPS:
            return
        rate = gain * self._steps_tokens / max(1e-6, now - self._steps_since)
        self._steps_tokens, self._steps_since, self.throughput = 0, now, rate
        used = rank.pool.used
        share = used / max(1, rank.pool.capacity)
        accepted = gain if self.launch.draft else 0.0
        self.log.decode(rank.index, sequences, used, share, rate, len(rank.waiting), accepted)

    def first(self, rank: Rank, seq: Sequence, now: float) -> None:
        """Note the time to the first token."""
        self.ttft.setdefault(seq.streaming, Histogram(_TTFT)).observe(now - seq.arrived)
        self.queue.observe(seq.admitted - seq.arrived)

    def end(self, rank: Rank, seq: Sequence, now: float) -> None:
        """Note a finished or aborted request."""
        if seq.aborted:
            self.aborted += 1
            return
        self._finish(seq.streaming, seq.tokens, seq.cached, seq.output)
        self.e2e.setdefault(seq.streaming, Histogram(_E2E)).observe(now - seq.arrived)
        if seq.streaming and seq.output > 1:
            self.gaps.observe((now - seq.first) / (seq.output - 1), seq.output - 1)

    def _finish(self, streaming: bool, prompt: int, cached: int, output: int) -> None:
        note = self.finished.setdefault(streaming, {"prompt": 0, "generation": 0, "requests": 0})
        note["prompt"] += prompt
        note["generation"] += output
        note["requests"] += 1
        self.cached += cached
        self.prompts.observe(prompt)
        self.uncached.observe(prompt - cached)
        self.generated.observe(output)

    def text(self, ranks: list[Rank]) -> str:
        """Return the reply to a scrape."""
        return self._gauges(ranks) + self._histograms() + self._counters(ranks)

    def _gauges(self, ranks: list[Rank]) -> str:
        launch, named = self.launch, [(rank, self._rank_labels(rank)) for rank in ranks]
        rates = rank_acceptance(ranks[0], launch.draft)
        gauges: dict[str, Callable[[Rank], float]] = {
            "max_total_num_tokens": lambda rank: launch.pool,
            "weight_memory_usage_gb": lambda rank: launch.weights_gib,
            "kv_cache_memory_usage_gb": lambda rank: launch.available_gib,
            "page_size": lambda rank: launch.page,
            "num_pages": lambda rank: launch.pool // launch.page,
            "context_len": lambda rank: launch.context,
            "num_running_reqs": lambda rank: rank.running,
            "num_queue_reqs": lambda rank: len(rank.waiting),
            "gen_throughput": lambda rank: self.throughput if rank.running else 0,
            "cache_hit_rate": lambda rank: self.hit_rate,
            "token_usage": lambda rank: rank.pool.used / max(1, rank.pool.capacity),
            "full_token_usage": lambda rank: rank.pool.used / max(1, rank.pool.capacity),
            "swa_token_usage": lambda rank: 0,
            "mamba_usage": lambda rank: 0,
            "num_used_tokens": lambda rank: rank.pool.used,
            "kv_available_tokens": lambda rank: rank.pool.capacity - rank.pool.held - rank.pool.cached,
            "kv_evictable_tokens": lambda rank: rank.pool.cached - rank.pool.locked,
            "kv_used_tokens": lambda rank: rank.pool.used,
            "spec_accept_length": lambda rank: rates[0],
            "spec_accept_rate": lambda rank: rates[1],
        }
        out = []
        for name, value in gauges.items():
            samples = [(labels, float(value(rank))) for rank, labels in named]
            out.append(family(f"sglang:{name}", "gauge", f"{name.replace('_', ' ')} (simulated).", samples))
        pids = [({**labels, "pid": str(self.log.pid + 78)}, 0.0) for _, labels in named]
        out.append(family("sglang:num_retracted_reqs", "gauge", "The number of retracted requests.", pids))
        phases = {"load_weight": 24.11, "kv_cache_allocation": 0.31, "scheduler_e2e": 29.7, "tokenizer_e2e": 47.2}
        timed = [({**self._labels, "phase": phase}, seconds) for phase, seconds in phases.items()]
        out.append(
            family("sglang:startup_time_seconds", "gauge", "Engine startup duration by phase in seconds.", timed)
        )
        return "".join(out)

    def _histograms(self) -> str:
        out = [
            histogram(
                "sglang:queue_time_seconds", "Histogram of queueing time in seconds.", [(self._labels, self.queue)]
            )
        ]
        for name, by_kind in (("time_to_first_token_seconds", self.ttft), ("e2e_request_latency_seconds", self.e2e)):
            samples = [(self._streaming(streaming), values) for streaming, values in sorted(by_kind.items())]
            out.append(histogram(f"sglang:{name}", f"Histogram of {name.replace('_', ' ')}.", samples))
        plain = {
            "prompt_tokens_histogram": self.prompts,
            "uncached_prompt_tokens_histogram": self.uncached,
            "generation_tokens_histogram": self.generated,
        }
        if self.gaps.number:
            plain["inter_token_latency_seconds"] = self.gaps
        for name, values in plain.items():
            out.append(histogram(f"sglang:{name}", f"Histogram of {name.replace('_', ' ')}.", [(self._labels, values)]))
        return "".join(out)

    def _counters(self, ranks: list[Rank]) -> str:
        asked = [({"endpoint": path, "method": method}, n) for (path, method), n in self.requests.items()]
        answered = [
            ({"endpoint": path, "method": method, "status_code": code}, n)
            for (path, method, code), n in self.responses.items()
        ]
        out = [
            family("sglang:http_requests", "counter", "Total number of HTTP requests by endpoint and method", asked),
            family("sglang:http_responses", "counter", "Total number of HTTP responses by endpoint and code", answered),
        ]
        for name, key in (
            ("prompt_tokens", "prompt"),
            ("generation_tokens", "generation"),
            ("num_requests", "requests"),
        ):
            samples = [(self._streaming(streaming), note[key]) for streaming, note in sorted(self.finished.items())]
            out.append(family(f"sglang:{name}", "counter", f"Number of {name.replace('_', ' ')} processed.", samples))
        device = {**self._labels, "cache_source": "device"}
        if self.cached:
            text = "Number of cached prompt tokens by source (device/host/storage)."
            out.append(family("sglang:cached_tokens", "counter", text, [(device, self.cached)]))
        if self.aborted:
            text = "Number of requests aborted."
            out.append(family("sglang:num_aborted_requests", "counter", text, [(self._labels, self.aborted)]))
        out.append(self._live(ranks))
        return "".join(out)

    def _live(self, ranks: list[Rank]) -> str:
        live, effective = [], []
        for rank in ranks:
            labels, totals = self._rank_labels(rank), rank.totals
            modes = {"prefill_compute": totals.computed, "decode": totals.generated, "prefill_cache": totals.hit}
            live += [({**labels, "mode": mode}, float(count)) for mode, count in modes.items() if count]
            sources = {"input": totals.computed, "device_hit": totals.hit, "host_hit": 0, "storage_hit": 0}
            effective += [({**labels, "mode": mode}, float(count)) for mode, count in sources.items()]
        text = "Total number of tokens processed. mode: prefill_compute, prefill_cache, decode."
        about = "Prompt tokens by where they came from, retracted re-counts excluded."
        return family("sglang:realtime_tokens", "counter", text, live) + family(
            "sglang:prefill_effective_tokens", "counter", about, effective
        )

    @property
    def _labels(self) -> dict[str, str]:
        return {"engine_type": "unified", "model_name": self.launch.names[0]}

    def _streaming(self, streaming: bool) -> Labels:
        return {**self._labels, "is_streaming": "true" if streaming else "false"}

    def _rank_labels(self, rank: Rank) -> Labels:
        labels = {**self._labels, "moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}
        return {**labels, "dp_rank": str(rank.index)} if self.launch.dp > 1 else labels


def rank_acceptance(rank: Rank, draft: int) -> tuple[float, float]:
    """Return the mean tokens per step and the share of drafted tokens that were accepted; zeros without speculation."""
    if not draft or not rank.totals.drafts:
        return 0.0, 0.0
    accepted = sum(rank.totals.accepted) / rank.totals.drafts
    return 1 + accepted, accepted / draft
