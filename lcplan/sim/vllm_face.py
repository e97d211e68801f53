"""The HTTP face of vLLM 0.31.0: bodies, errors, chunk shapes (vllm/entrypoints/)."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from lcplan.sim.launch import Launch
from lcplan.sim.rank import Sequence
from lcplan.sim.requests import Ask, Refused, usage
from lcplan.sim.schedule import Engine
from lcplan.sim.vllm_log import VllmLog
from lcplan.sim.vllm_metrics import VllmMetrics

DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class VllmFace:
    """What a vLLM server answers."""

    pairs = True
    reasoning = "reasoning"
    warms_up = False
    metrics_on = True
    health_costs_a_token = False

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.log = VllmLog(launch)
        self.watch = VllmMetrics(launch)
        self.fingerprint = f"vllm-{launch.version}-" + (f"dp{launch.dp}-" if launch.dp > 1 else "") + "11c0ffee"
        self.developing = launch.env.get("VLLM_SERVER_DEV_MODE") == "1"

    def routes(self) -> dict[tuple[str, str], str]:
        """Return (method, path) -> name of the server's handler."""
        out = {
            ("GET", "/health"): "health",
            ("GET", "/ping"): "health",
            ("POST", "/ping"): "health",
            ("GET", "/load"): "load",
            ("GET", "/version"): "version",
            ("GET", "/v1/models"): "models",
            ("GET", "/metrics"): "metrics",
            ("POST", "/tokenize"): "tokenize",
            ("POST", "/detokenize"): "detokenize",
            ("POST", "/v1/completions"): "completions",
            ("POST", "/v1/chat/completions"): "chat",
        }
        if self.developing:
            out |= {("POST", "/reset_prefix_cache"): "reset", ("GET", "/server_info"): "info"}
        return out

    def models(self) -> dict[str, Any]:
        """Return the body of /v1/models: root is the path."""
        created = int(time.time())
        permission = {
            "id": "modelperm-simulated",
            "object": "model_permission",
            "created": created,
            "is_blocking": False,
        }
        entries = [
            {
                "id": name,
                "object": "model",
                "created": created,
                "owned_by": "vllm",
                "root": self.launch.model,
                "parent": None,
                "max_model_len": self.launch.context,
                "permission": [permission],
            }
            for name in self.launch.names
        ]
        return {"object": "list", "data": entries}

    def load(self, engine: Engine) -> Any:
        """Return the body of /load: counted only with a flag."""
        counted = self.launch.flags.get("enable-server-load-tracking")
        return {"server_load": sum(rank.running + len(rank.waiting) for rank in engine.ranks) if counted else 0}

    def info(self, engine: Engine) -> dict[str, Any]:
        """Return the body of /server_info."""
        return {"vllm_config": repr(dict(self.launch.flags)), "vllm_env": {}, "system_env": {}, "simulated": True}

    def metrics(self, engine: Engine) -> str:
        """Return the text of a scrape."""
        return self.watch.text(engine.ranks)

    def reset(self, done: bool) -> tuple[int, Any]:
        """Return status and body of a cache reset."""
        return 200, {"success": done}

    def error(self, refused: Refused) -> dict[str, Any]:
        """Return the body of an error."""
        return {
            "error": {
                "message": refused.message,
                "type": refused.kind,
                "param": refused.param,
                "code": refused.status,
            }
        }

    def limit(self, ask: Ask) -> int:
        """Return the most tokens that may be generated. Raises Refused for an unknown model or a prompt too long."""
        if ask.model and ask.model not in self.launch.names:
            raise Refused(404, f"The model `{ask.model}` does not exist.", "NotFoundError", "model")
        room, prompt = self.launch.context, ask.longest
        limit = ask.limit if ask.limit is not None else (max(0, room - prompt) if ask.chat else 16)
        if prompt + max(1, limit) > room:
            raise Refused(
                400,
                f"This model's maximum context length is {room} tokens. However, you requested {limit} "
                "output tokens and "
                f"your prompt contains {prompt} input tokens, for a total of {prompt + limit} tokens. "
                "Please reduce the "
                "length of the input prompt or the number of requested output tokens. "
                f"(parameter=input_tokens, value={prompt})",
                param="input_tokens",
            )
        return max(1, limit)

    def dead(self) -> Refused:
        """Return the error of every request after the engine died."""
        return Refused(500, DEAD, "InternalServerError")

    def usage(self, sequences: list[Sequence], generated: int, *, streamed: bool) -> dict[str, Any]:
        """Return the usage of a request; cached tokens only with --enable-prompt-tokens-details."""
        shown = bool(self.launch.flags.get("enable-prompt-tokens-details"))
        return usage(sequences, generated, shows_cached=shown, streamed=streamed)

    def frame(self, ask: Ask, index: int) -> tuple[str, str]:
        """Return both sides of a chunk's text and finish reason."""
        kind = "chat.completion.chunk" if ask.chat else "text_completion"
        model = json.dumps(self._model(ask))
        start = f'{{"id":"{self._id(ask)}","object":"{kind}","created":{ask.created},"model":{model},'
        if ask.chat:
            return f'{start}"choices":[{{"index":{index},"delta":', ',"logprobs":null,"finish_reason":'
        return f'{start}"choices":[{{"index":{index},"text":', ',"logprobs":null,"finish_reason":'

    def closing(self, usage: Mapping[str, Any] | None) -> str:
        """Return the end of a chunk."""
        nulls = ',"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]'
        return nulls + (f',"usage":{_compact(usage)}}}' if usage else "}")

    def last(self, ask: Ask, usage: Mapping[str, Any]) -> str:
        """Return the usage chunk."""
        body: dict[str, Any] = {
            "id": self._id(ask),
            "object": "chat.completion.chunk" if ask.chat else "text_completion",
            "created": ask.created,
            "model": self._model(ask),
            "choices": [],
            "usage": usage,
            "system_fingerprint": self.fingerprint,
        }
        return _compact(body)

    def choice(self, ask: Ask, index: int, text: str, thought: str | None, reason: str) -> dict[str, Any]:
        """Return one choice of a reply that is not streamed."""
        if not ask.chat:
            nulls = {"stop_reason": None, "token_ids": None, "prompt_logprobs": None, "prompt_token_ids": None}
            return {"index": index, "text": text, "logprobs": None, "finish_reason": reason, **nulls}
        message = {
            "role": "assistant",
            "content": text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": thought,
        }
        nulls = {"stop_reason": None, "token_ids": None, "routed_experts": None}
        return {"index": index, "message": message, "logprobs": None, "finish_reason": reason, **nulls}

    def whole(self, ask: Ask, choices: list[dict[str, Any]], usage: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the body of a reply that is not streamed."""
        return {
            "id": self._id(ask),
            "object": "chat.completion" if ask.chat else "text_completion",
            "created": ask.created,
            "model": self._model(ask),
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
            "usage": usage,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "metrics": None,
        }

    def _id(self, ask: Ask) -> str:
        return f"{'chatcmpl' if ask.chat else 'cmpl'}-{ask.id[:16]}"

    def _model(self, ask: Ask) -> str:
        return ask.model or self.launch.names[0]


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
