"""What each engine says over HTTP: paths, how to believe a reply, and the names of its metrics. No HTTP library here.

Facts are those of vLLM 0.25.1 and 0.31.0 and SGLang 0.5.17 and 0.5.21: captured servers where there are some, else the
engines' sources (vllm/v1/metrics/loggers.py, sglang/srt/entrypoints/http_server.py,
sglang/srt/observability/metrics_collector.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Readiness = Literal["ready", "starting", "dead", "next"]
Series = dict[str, list[tuple[dict[str, str], float]]]


@dataclass(frozen=True, slots=True)
class Dialect:
    """Where an engine answers what. Paths are relative to the server's base URL; "" means that it has no such path."""

    kind: str
    ready: tuple[str, ...]  # in this order; a 404 sends the caller to the next one
    version: tuple[str, ...]
    reset: str
    tokenize: str
    probe_timeout_s: float  # SGLang's /health runs a generation: about 1 s idle, up to 20 s busy
    model_path: tuple[str, ...] = ("/v1/models",)
    models: str = "/v1/models"
    metrics: str = "/metrics"


DIALECTS: Mapping[str, Dialect] = {
    "vllm": Dialect("vllm", ("/health",), ("/version",), "/reset_prefix_cache", "/tokenize", 5.0),
    "sglang": Dialect(
        "sglang",
        ready=("/ready", "/health"),
        version=("/server_info", "/get_server_info"),
        reset="/flush_cache",
        tokenize="/tokenize",
        probe_timeout_s=25.0,
        model_path=("/model_info", "/get_model_info"),
    ),
    "openai": Dialect("openai", ("/v1/models",), (), "", "/tokenize", 5.0),
}


def readiness(kind: str, path: str, status: int | None) -> Readiness:
    """Return what one reply to a readiness path means; `status` None stands for refused, reset or timed out.

    vLLM has no 503 phase while it starts, so its 503 means that the engine core is dead. SGLang answers 503 during
    its warm-up. A refused connection is no death: the process tells that.
    """
    if status == 200:
        return "ready"
    if status == 404 and path != DIALECTS[kind].ready[-1]:
        return "next"
    if status == 503 and kind == "vllm":
        return "dead"
    return "starting"


def served_names(body: object) -> list[str]:
    """Return the model names that a reply of `/v1/models` lists, [] when it is no such list."""
    data = body.get("data") if isinstance(body, Mapping) else None
    return [str(d["id"]) for d in data if isinstance(d, Mapping) and "id" in d] if isinstance(data, list) else []


def served_version(body: object) -> str | None:
    """Return the engine version in a reply of a version path (vLLM `/version`, SGLang `/server_info`), else None."""
    version = body.get("version") if isinstance(body, Mapping) else None
    return version if isinstance(version, str) else None


def model_path(body: object) -> str | None:
    """Return the path of the model in a reply of a model path: SGLang's own key, else `root` of vLLM's model list."""
    if not isinstance(body, Mapping):
        return None
    data = body.get("data")
    first = data[0] if isinstance(data, list) and data and isinstance(data[0], Mapping) else {}
    path = body.get("tokenizer_path") or body.get("model_path") or first.get("root")
    return path if isinstance(path, str) else None


def reset_done(kind: str, status: int, body: str) -> bool:
    """Return whether a reply to the cache reset says that the cache was emptied.

    vLLM answers 200 with `{"success": false}` while blocks are held, and 404 without VLLM_SERVER_DEV_MODE=1. SGLang
    answers a text. A caller should still see the counters agree before it believes this.
    """
    if status != 200:
        return False
    if kind == "sglang":
        return body.startswith("Cache flushed")
    try:
        reply = json.loads(body)
    except ValueError:
        return False
    return isinstance(reply, Mapping) and reply.get("success") is True


_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+\S+)?$")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


def parse_prometheus(text: str) -> Series:
    """Return {metric name: [(labels, value)]} of a Prometheus text page; lines that are no samples are skipped."""
    series: Series = {}
    for line in text.splitlines():
        found = None if line.startswith("#") else _SAMPLE.match(line.strip())
        if not found:
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        labels = {name: _ESCAPE.sub(_unescape, raw) for name, raw in _LABEL.findall(found[2] or "")}
        series.setdefault(found[1], []).append((labels, value))
    return series


@dataclass(frozen=True, slots=True)
class Counters:
    """What a metrics page says of an engine, summed over its ranks; None where it says nothing.

    `queried` and `hit` are prompt tokens looked up in the prefix cache and found there, since the engine's start. The
    rest: requests waiting and running now, preemptions so far, KV pool use (0 to 1, the fullest rank), and the
    speculative decoding totals. `accept_length` is the gauge that SGLang has instead of those totals.
    """

    queried: float | None = None
    hit: float | None = None
    generated: float | None = None
    waiting: float | None = None
    running: float | None = None
    preemptions: float | None = None
    kv_usage: float | None = None
    drafts: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    accepted_per_position: Mapping[str, float] = field(default_factory=dict)
    accept_length: float | None = None


def counters(text: str, kind: str) -> Counters:
    """Return the counters of a metrics page of an engine of this kind; all None when the page is not the engine's.

    A counter that SGLang has not written yet is 0: its series appear with their first event. An `openai` server may be
    either engine behind a command of the user's own.
    """
    series = parse_prometheus(text)
    for engine, read in (("vllm", _vllm), ("sglang", _sglang)):
        if kind in (engine, "openai") and any(name.startswith(f"{engine}:") for name in series):
            return read(series)
    return Counters()


@dataclass(frozen=True, slots=True)
class Gauges:
    """The few figures worth reading while a measurement runs: requests waiting and KV pool use (0 to 1)."""

    waiting: float | None
    kv_usage: float | None


_GAUGES: Mapping[str, tuple[re.Pattern[str], re.Pattern[str]]] = {
    "vllm": (
        re.compile(r"^vllm:num_requests_waiting(?:\{.*\})? (\S+)", re.MULTILINE),
        re.compile(r"^vllm:kv_cache_usage_perc(?:\{.*\})? (\S+)", re.MULTILINE),
    ),
    "sglang": (
        re.compile(r"^sglang:num_queue_reqs(?:\{.*\})? (\S+)", re.MULTILINE),
        re.compile(r"^sglang:token_usage(?:\{.*\})? (\S+)", re.MULTILINE),
    ),
}
_SGLANG_TOKENS = [
    re.compile(rf"^sglang:{name}(?:\{{.*\}})? (\S+)", re.MULTILINE)
    for name in ("num_used_tokens", "max_total_num_tokens")
]


def gauges(text: str, kind: str) -> Gauges:
    """Return the gauges of a metrics page by search, not by parsing all of it: cheap enough for a running client."""
    if kind not in _GAUGES:
        return Gauges(None, None)
    waiting, usage = ([float(v) for v in pattern.findall(text)] for pattern in _GAUGES[kind])
    if kind == "sglang":  # its own gauge is rounded to 0.01
        used, pools = ([float(v) for v in pattern.findall(text)] for pattern in _SGLANG_TOKENS)
        if used and len(used) == len(pools) and all(pools):
            usage = [tokens / pool for tokens, pool in zip(used, pools, strict=True)]
    return Gauges(sum(waiting) if waiting else None, max(usage) if usage else None)


@dataclass(frozen=True, slots=True)
class Capacity:
    """The KV pool as a metrics page gives it: tokens per engine rank, how many ranks, and the engine's concurrency."""

    pool_tokens: int
    engines: int
    concurrency: float | None = None


def capacity(text: str, kind: str) -> Capacity | None:
    """Return the KV pool of a metrics page, None when it has none.

    vLLM repeats `cache_config_info` on every engine label: `num_gpu_blocks` is the sum over engines there, while
    `kv_cache_size_tokens` is per engine (vllm/v1/engine/core_client.py:845-860).
    """
    series = parse_prometheus(text)
    if kind == "vllm":
        return _vllm_capacity(series.get("vllm:cache_config_info", []))
    if kind == "sglang":
        pools = series.get("sglang:max_total_num_tokens", [])
        ranks = {labels.get("dp_rank", "0") for labels, _ in pools}
        return Capacity(int(min(value for _, value in pools)), len(ranks)) if pools else None
    return None


def _unescape(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


def _vllm(series: Series) -> Counters:
    position = {
        labels.get("position", ""): value
        for labels, value in series.get("vllm:spec_decode_num_accepted_tokens_per_pos_total", [])
    }
    return Counters(
        queried=_total(series, "vllm:prefix_cache_queries_total"),
        hit=_total(series, "vllm:prefix_cache_hits_total"),
        generated=_total(series, "vllm:generation_tokens_total"),
        waiting=_total(series, "vllm:num_requests_waiting"),
        running=_total(series, "vllm:num_requests_running"),
        preemptions=_total(series, "vllm:num_preemptions_total"),
        kv_usage=_highest(series, "vllm:kv_cache_usage_perc"),
        drafts=_total(series, "vllm:spec_decode_num_drafts_total"),
        draft_tokens=_total(series, "vllm:spec_decode_num_draft_tokens_total"),
        accepted_tokens=_total(series, "vllm:spec_decode_num_accepted_tokens_total"),
        accepted_per_position=position,
    )


def _sglang(series: Series) -> Counters:
    live = series.get("sglang:realtime_tokens_total")
    if live is not None:
        hit = _of_mode(live, ("prefill_cache",))
        queried = hit + _of_mode(live, ("prefill_compute",))
    else:
        hit = _total(series, "sglang:cached_tokens_total") or 0.0
        queried = _total(series, "sglang:prompt_tokens_total") or 0.0
    return Counters(
        queried=queried,
        hit=hit,
        generated=_total(series, "sglang:generation_tokens_total") or 0.0,
        waiting=_total(series, "sglang:num_queue_reqs"),
        running=_total(series, "sglang:num_running_reqs"),
        preemptions=_total(series, "sglang:num_retracted_requests_total") or 0.0,
        kv_usage=_sglang_usage(series),
        accept_length=_highest(series, "sglang:spec_accept_length") or None,
    )


def _sglang_usage(series: Series) -> float | None:
    """Return the fullest rank's use of its pool, from its tokens: the gauge `token_usage` is rounded to 0.01."""
    pools = {_rank(labels): value for labels, value in series.get("sglang:max_total_num_tokens", [])}
    used = [
        value / pools[_rank(labels)]
        for labels, value in series.get("sglang:num_used_tokens", [])
        if pools.get(_rank(labels))
    ]
    return max(used) if used else _highest(series, "sglang:token_usage")


def _rank(labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(labels.get(name, "0") for name in ("dp_rank", "tp_rank", "pp_rank"))


def _vllm_capacity(samples: list[tuple[dict[str, str], float]]) -> Capacity | None:
    if not samples:
        return None
    labels: dict[str, Any] = samples[0][0]
    engines = len({sample.get("engine", "0") for sample, _ in samples})
    tokens = _number(labels.get("kv_cache_size_tokens"))
    blocks, size = _number(labels.get("num_gpu_blocks")), _number(labels.get("block_size"))
    if tokens is None and blocks is not None and size is not None:
        tokens = blocks * size / engines
    return None if tokens is None else Capacity(int(tokens), engines, _number(labels.get("kv_cache_max_concurrency")))


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _total(series: Series, name: str) -> float | None:
    return sum(value for _, value in series[name]) if name in series else None


def _highest(series: Series, name: str) -> float | None:
    return max(value for _, value in series[name]) if name in series else None


def _of_mode(samples: Iterable[tuple[dict[str, str], float]], modes: tuple[str, ...]) -> float:
    return sum(value for labels, value in samples if labels.get("mode") in modes)
