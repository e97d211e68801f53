"""The HTTP face of SGLang 0.5.21: bodies, errors, chunk shapes (sglang/srt/entrypoints/)."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from lcplan.sim.launch import Launch
from lcplan.sim.rank import Sequence
from lcplan.sim.requests import Ask, Refused, usage
from lcplan.sim.schedule import Engine
from lcplan.sim.sglang_log import SglangLog, server_args
from lcplan.sim.sglang_metrics import SglangMetrics

FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting "
    "requests, the operation "
    "will not be performed.)\n"
)
DEPRECATED = {"/get_server_info": "/server_info", "/get_model_info": "/model_info"}


class SglangFace:
    """What an SGLang server answers."""

    pairs = False
    reasoning = "reasoning_content"
    warms_up = True
    health_costs_a_token = True

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.log = SglangLog(launch)
        self.watch = SglangMetrics(launch, self.log)
        self.metrics_on = bool(launch.flags.get("enable-metrics"))

    def routes(self) -> dict[tuple[str, str], str]:
        """Return (method, path) -> name of the server's handler."""
        out = {
            ("GET", "/health"): "health",
            ("GET", "/health_generate"): "health",
            ("GET", "/ready"): "ready",
            ("GET", "/v1/models"): "models",
            ("GET", "/model_info"): "model_info",
            ("GET", "/get_model_info"): "model_info",
            ("GET", "/server_info"): "info",
            ("GET", "/get_server_info"): "info",
            ("GET", "/v1/loads"): "load",
            ("GET", "/flush_cache"): "reset",
            ("POST", "/flush_cache"): "reset",
            ("POST", "/v1/completions"): "completions",
            ("POST", "/v1/chat/completions"): "chat",
        }
        for prefix in ("", "/v1"):
            out |= {("POST", f"{prefix}/tokenize"): "tokenize", ("POST", f"{prefix}/detokenize"): "detokenize"}
        return {**out, ("GET", "/metrics"): "metrics"} if self.metrics_on else out

    def deprecated(self, path: str) -> None:
        """Write the notice of a deprecated route."""
        text = "is deprecated and will be removed in a future version."
        self.log.record(f"Endpoint '{path}' {text} Please use '{DEPRECATED[path]}' instead.")

    def models(self) -> dict[str, Any]:
        """Return the body of /v1/models: root is the served name."""
        name = self.launch.names[0]
        entry = {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "sglang",
            "root": name,
            "parent": None,
            "max_model_len": self.launch.context,
        }
        return {"object": "list", "data": [entry]}

    def model_info(self) -> dict[str, Any]:
        """Return the body of /model_info."""
        launch = self.launch
        return {
            "model_path": launch.model,
            "tokenizer_path": launch.model,
            "served_model_name": launch.names[0],
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": launch.profile.name,
            "architectures": [launch.profile.architecture],
            "load_format": launch.flags.get("load-format", "auto"),
            "reasoning_parser": launch.flags.get("reasoning-parser"),
            "tool_call_parser": launch.flags.get("tool-call-parser"),
            "disaggregation_mode": launch.flags.get("disaggregation-mode", "null"),
        }

    def info(self, engine: Engine) -> dict[str, Any]:
        """Return the body of /server_info."""
        launch = self.launch
        arguments = server_args(launch)
        memory = {
            "weight": round(launch.weights_gib, 2),
            "kvcache": round(launch.available_gib, 3),
            "token_capacity": launch.pool,
        }
        state = {
            **arguments,
            "last_gen_throughput": self.watch.throughput,
            "memory_usage": memory,
            "effective_max_running_requests_per_dp": launch.max_seqs,
        }
        return {
            **arguments,
            "status": "ready",
            "max_total_num_tokens": launch.pool,
            "max_req_input_len": self._longest_input,
            "startup_time": {"load_weight": 24.11, "scheduler_e2e": 29.7},
            "version": launch.version,
            "internal_states": [state for _ in engine.ranks],
            "simulated": True,
        }

    def load(self, engine: Engine) -> Any:
        """Return the body of /v1/loads."""
        loads = [
            {
                "dp_rank": rank.index,
                "num_running_reqs": rank.running,
                "num_waiting_reqs": len(rank.waiting),
                "num_total_reqs": rank.running + len(rank.waiting),
                "num_used_tokens": rank.pool.used,
                "max_total_num_tokens": rank.pool.capacity,
                "token_usage": rank.pool.used / max(1, rank.pool.capacity),
            }
            for rank in engine.ranks
        ]
        return {"loads": loads, "dp_rank_count": len(loads)}

    def metrics(self, engine: Engine) -> str:
        """Return the text of a scrape."""
        return self.watch.text(engine.ranks)

    def reset(self, done: bool) -> tuple[int, Any]:
        """Return status and body of a cache flush."""
        if not done:
            return 400, "Flush cache failed: there are running or waiting requests.\n"
        self.log.record("Cache flushed successfully!")
        return 200, FLUSHED

    def error(self, refused: Refused) -> dict[str, Any]:
        """Return the body of an error: flat."""
        return {
            "object": "error",
            "message": refused.message,
            "type": refused.kind,
            "param": None,
            "code": refused.status,
        }

    def limit(self, ask: Ask) -> int:
        """Return the most tokens that may be generated. Raises Refused for a prompt too long, not for a name."""
        launch, prompt = self.launch, ask.longest
        if prompt >= launch.context:
            text = f"The input ({prompt} tokens) is longer than the model's context length ({launch.context} tokens)."
            raise Refused(400, text)
        if prompt > self._longest_input:
            raise Refused(
                400,
                f"Input length ({prompt} tokens) exceeds the maximum allowed length "
                f"({self._longest_input} tokens). Use a "
                "shorter input or enable --allow-auto-truncate.",
            )
        if ask.limit is not None and prompt + ask.limit > launch.context:
            raise Refused(
                400,
                f"Requested token count exceeds the model's maximum context length of {launch.context} "
                "tokens. You requested "
                f"a total of {prompt + ask.limit} tokens: {prompt} tokens from the input messages and "
                f"{ask.limit} tokens for "
                "the completion. Please reduce the number of tokens in the input messages or the "
                "completion to fit within "
                "the limit.",
            )
        room = min(launch.context, launch.pool) - prompt - 1
        limit = ask.limit if ask.limit is not None else (room if ask.chat else 16)
        return max(1, min(limit, room))

    def dead(self) -> Refused:
        """Return the error of a request that reaches a server that goes down."""
        return Refused(503, "The server is shutting down.", "ServiceUnavailable")

    def usage(self, sequences: list[Sequence], generated: int, *, streamed: bool) -> dict[str, Any]:
        """Return the usage of a request; cached tokens with --enable-cache-report, when there are some."""
        shown = bool(self.launch.flags.get("enable-cache-report"))
        return {**usage(sequences, generated, shows_cached=shown, streamed=streamed), "reasoning_tokens": 0}

    def frame(self, ask: Ask, index: int) -> tuple[str, str]:
        """Return both sides of a chunk's text and finish reason."""
        kind = "chat.completion.chunk" if ask.chat else "text_completion"
        start = f'{{"id":"{ask.id}","object":"{kind}","created":{ask.created},"model":{json.dumps(self._model(ask))},'
        key = "delta" if ask.chat else "text"
        return f'{start}"choices":[{{"index":{index},"{key}":', ',"logprobs":null,"finish_reason":'

    def closing(self, usage: Mapping[str, Any] | None) -> str:
        """Return the end of a chunk."""
        return f',"matched_stop":null}}],"usage":{_compact(usage) if usage else "null"}}}'

    def last(self, ask: Ask, usage: Mapping[str, Any]) -> str:
        """Return the usage chunk."""
        kind = "chat.completion.chunk" if ask.chat else "text_completion"
        body = {"id": ask.id, "object": kind, "created": ask.created, "model": self._model(ask), "choices": []}
        return _compact({**body, "usage": usage})

    def choice(self, ask: Ask, index: int, text: str, thought: str | None, reason: str) -> dict[str, Any]:
        """Return one choice of a reply that is not streamed."""
        said: dict[str, Any] = {"text": text}
        if ask.chat:
            message = {"role": "assistant", "content": text, "reasoning_content": thought, "tool_calls": None}
            said = {"message": message}
        return {"index": index, **said, "logprobs": None, "finish_reason": reason, "matched_stop": None}

    def whole(self, ask: Ask, choices: list[dict[str, Any]], usage: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the body of a reply that is not streamed."""
        return {
            "id": ask.id,
            "object": "chat.completion" if ask.chat else "text_completion",
            "created": ask.created,
            "model": self._model(ask),
            "choices": choices,
            "usage": usage,
            "metadata": {"weight_version": "default"},
        }

    @property
    def _longest_input(self) -> int:
        return min(self.launch.context - 1, self.launch.pool - 1) - 5

    def _model(self, ask: Ask) -> str:
        return ask.model or self.launch.names[0]


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
