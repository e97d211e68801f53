"""/metrics of vLLM 0.31.0: names and labels of vllm/v1/metrics/loggers.py, one series per engine rank."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from lcplan.sim.metrics import Histogram, Labels, family, histogram
from lcplan.sim.rank import Rank, Sequence, Watch

if TYPE_CHECKING:
    from lcplan.sim.launch import Launch

_REASONS = ("stop", "length", "abort", "error", "repetition")
_TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
_GAP = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_LONG = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_COUNT = tuple(base * 10**power for power in range(6) for base in (1, 2, 5))[:-2]
_HISTOGRAMS = {
    "time_to_first_token_seconds": ("Histogram of time to first token in seconds.", _TTFT),
    "inter_token_latency_seconds": ("Histogram of inter-token latency in seconds.", _GAP),
    "request_time_per_output_token_seconds": ("Histogram of time_per_output_token_seconds per request.", _GAP),
    "e2e_request_latency_seconds": ("Histogram of e2e request latency in seconds.", _LONG),
    "request_queue_time_seconds": ("Histogram of time spent in WAITING phase for request.", _LONG),
    "request_inference_time_seconds": ("Histogram of time spent in RUNNING phase for request.", _LONG),
    "request_prefill_time_seconds": ("Histogram of time spent in PREFILL phase for request.", _LONG),
    "request_decode_time_seconds": ("Histogram of time spent in DECODE phase for request.", _LONG),
    "request_prefill_kv_computed_tokens": ("Histogram of new KV tokens computed during prefill.", _COUNT),
    "request_prompt_tokens": ("Number of prefill tokens processed.", _COUNT),
    "request_generation_tokens": ("Number of generation tokens processed.", _COUNT),
}


class VllmMetrics(Watch):
    """Histograms and finished requests of all ranks, and the text of a scrape."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.created = time.time()
        ranks = range(launch.dp)
        self.ended = [dict.fromkeys(_REASONS, 0) for _ in ranks]
        self.seen = [{name: Histogram(bounds) for name, (_, bounds) in _HISTOGRAMS.items()} for _ in ranks]

    def first(self, rank: Rank, seq: Sequence, now: float) -> None:
        """Note the time to the first token."""
        self.seen[rank.index]["time_to_first_token_seconds"].observe(now - seq.arrived)

    def end(self, rank: Rank, seq: Sequence, now: float) -> None:
        """Note a finished or aborted request."""
        self.ended[rank.index]["abort" if seq.aborted else seq.reason] += 1
        if seq.aborted:
            return
        note = self.seen[rank.index]
        decode, gaps = now - seq.first, max(1, seq.output - 1)
        note["inter_token_latency_seconds"].observe(decode / gaps, seq.output - 1)
        note["request_time_per_output_token_seconds"].observe(decode / gaps)
        note["e2e_request_latency_seconds"].observe(now - seq.arrived)
        note["request_queue_time_seconds"].observe(seq.admitted - seq.arrived)
        note["request_inference_time_seconds"].observe(now - seq.admitted)
        note["request_prefill_time_seconds"].observe(seq.first - seq.admitted)
        note["request_decode_time_seconds"].observe(decode)
        note["request_prefill_kv_computed_tokens"].observe(seq.tokens - seq.cached)
        note["request_prompt_tokens"].observe(seq.tokens)
        note["request_generation_tokens"].observe(seq.output)

    def text(self, ranks: list[Rank]) -> str:
        """Return the reply to a scrape."""
        named = [(rank, self._labels(rank)) for rank in ranks]
        parts = [
            family("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.",
                   [(labels, rank.running) for rank, labels in named]),
            family("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.",
                   [(labels, len(rank.waiting)) for rank, labels in named]),
            family("vllm:num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.",
                   [({**labels, "reason": reason}, len(rank.waiting) if reason == "capacity" else 0)
                    for rank, labels in named for reason in ("capacity", "deferred")]),
            family("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.",
                   [(labels, rank.pool.used / max(1, rank.pool.capacity)) for rank, labels in named]),
            self._counter("vllm:prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.",
                          [(labels, rank.totals.queried) for rank, labels in named]),
            self._counter("vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.",
                          [(labels, rank.totals.hit) for rank, labels in named]),
            self._counter("vllm:external_prefix_cache_queries", "External prefix cache queries from KV connector.",
                          [(labels, rank.totals.remote) for rank, labels in named]),
            self._counter("vllm:external_prefix_cache_hits", "External prefix cache hits from KV connector.",
                          [(labels, rank.totals.remote) for rank, labels in named]),
            self._counter("vllm:num_preemptions", "Cumulative number of preemption from the engine.",
                          [(labels, 0) for _, labels in named]),
            self._counter("vllm:prompt_tokens", "Number of prefill tokens processed.",
                          [(labels, rank.totals.prompt) for rank, labels in named]),
            self._counter("vllm:prompt_tokens_by_source", "Number of prompt tokens by source.",
                          [sample for rank, labels in named for sample in _sources(rank, labels)]),
            self._counter("vllm:prompt_tokens_cached", "Number of cached prompt tokens (local + external).",
                          [(labels, rank.totals.hit) for rank, labels in named]),
            self._counter("vllm:generation_tokens", "Number of generation tokens processed.",
                          [(labels, rank.totals.generated) for rank, labels in named]),
            self._counter("vllm:request_success", "Count of successfully processed requests.",
                          [({**labels, "finished_reason": reason}, count)
                           for rank, labels in named for reason, count in self.ended[rank.index].items()]),
        ]  # fmt: skip
        if self.launch.draft:
            parts.append(self._speculation(named))
        for name, (about, _) in _HISTOGRAMS.items():
            samples = [(labels, self.seen[rank.index][name]) for rank, labels in named]
            parts.append(histogram(f"vllm:{name}", about, samples))
            parts.append(self._born(f"vllm:{name}", about, [labels for _, labels in named]))
        info = [(self._cache_config(rank.index), 1.0) for rank in ranks]
        parts.append(family("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig", info))
        return "".join(parts)

    def _labels(self, rank: Rank) -> Labels:
        return {"engine": str(rank.index), "model_name": self.launch.names[0]}

    def _counter(self, name: str, about: str, samples: list[tuple[Labels, float]]) -> str:
        return family(name, "counter", about, samples) + self._born(name, about, [labels for labels, _ in samples])

    def _born(self, name: str, about: str, labels: Iterable[Labels]) -> str:
        return family(f"{name}_created", "gauge", about, [(one, self.created) for one in labels])

    def _speculation(self, named: list[tuple[Rank, Labels]]) -> str:
        drafts = [(labels, float(rank.totals.drafts)) for rank, labels in named]
        drafted = [(labels, float(rank.totals.drafts * self.launch.draft)) for rank, labels in named]
        accepted = [(labels, float(sum(rank.totals.accepted))) for rank, labels in named]
        by_place: list[tuple[Labels, float]] = [
            ({**labels, "position": str(place)}, float(count))
            for rank, labels in named
            for place, count in enumerate([*rank.totals.accepted, *[0] * self.launch.draft][: self.launch.draft])
        ]
        return (
            self._counter("vllm:spec_decode_num_drafts", "Number of spec decoding drafts.", drafts)
            + self._counter("vllm:spec_decode_num_draft_tokens", "Number of draft tokens.", drafted)
            + self._counter("vllm:spec_decode_num_accepted_tokens", "Number of accepted tokens.", accepted)
            + self._counter(
                "vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted tokens per draft position.", by_place
            )
        )

    def _cache_config(self, rank: int) -> Labels:
        """Labels of the cache config: blocks are those of all ranks, tokens and concurrency of one (core_client.py)."""
        launch = self.launch
        return {
            "block_size": str(launch.page),
            "cache_dtype": str(launch.flags.get("kv-cache-dtype", "auto")),
            "enable_prefix_caching": str(launch.cached),
            "engine": str(rank),
            "gpu_memory_utilization": str(launch.fraction),
            "kv_cache_max_concurrency": str(launch.pool / launch.context),
            "kv_cache_memory_bytes": "None",
            "kv_cache_size_tokens": str(launch.pool),
            "mamba_cache_mode": "none",
            "num_cpu_blocks": "None",
            "num_gpu_blocks": str(launch.pool // launch.page * launch.dp),
            "num_gpu_blocks_override": "None",
            "prefix_caching_hash_algo": "sha256",
            "sliding_window": "None",
        }


def _sources(rank: Rank, labels: Labels) -> list[tuple[Labels, float]]:
    counts = {
        "local_compute": rank.totals.prompt - rank.totals.hit - rank.totals.remote,
        "local_cache_hit": rank.totals.hit,
        "external_kv_transfer": rank.totals.remote,
    }
    return [({**labels, "source": source}, float(count)) for source, count in counts.items()]
