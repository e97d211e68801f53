"""Requests: reading an OpenAI body, the sequences it becomes, and the errors that are answered instead."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lcplan.sim import tokens
from lcplan.sim.answer import Answer, plan
from lcplan.sim.launch import Launch
from lcplan.sim.rank import Sequence

BEGIN_TURN, END_TURN = 3, 4


class Refused(Exception):
    """A request that is answered with an error. `param` as the engine names the field at fault."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param


@dataclass(slots=True)
class Ask:
    """A completion request. `prompts` are packed token ids, one per choice."""

    chat: bool
    model: str
    prompts: list[bytes]
    body: Mapping[str, Any]
    limit: int | None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def stream(self) -> bool:
        """Whether the reply is streamed."""
        return bool(self.body.get("stream"))

    @property
    def usage_at_end(self) -> bool:
        """Whether the stream ends with a usage chunk."""
        return bool((self.body.get("stream_options") or {}).get("include_usage"))

    @property
    def usage_always(self) -> bool:
        """Whether every chunk carries running usage."""
        options = self.body.get("stream_options") or {}
        return bool(options.get("include_usage") and options.get("continuous_usage_stats"))

    @property
    def longest(self) -> int:
        """The tokens of the longest prompt."""
        return max(len(prompt) // 4 for prompt in self.prompts)


def read(raw: bytes, *, chat: bool) -> Ask:
    """Return the request of a body. Raises Refused."""
    try:
        body = json.loads(raw)
    except ValueError as fault:
        raise Refused(400, f"JSON decode error: {fault}") from None
    if not isinstance(body, dict):
        raise Refused(400, "the body must be a JSON object")
    prompts = [_conversation(body)] if chat else _prompts(body.get("prompt"))
    prompts = prompts * int(body.get("n") or 1)
    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise Refused(400, f"max_tokens must be at least 1, got {limit}.", param="max_tokens")
    return Ask(chat, str(body.get("model") or ""), prompts, body, limit)


def sequences(
    ask: Ask, launch: Launch, limit: int, arrived: float, headers: Mapping[str, str]
) -> list[tuple[Sequence, Answer]]:
    """Return the sequences of a request with what they will say."""
    body = ask.body
    follows = "x-lcplan-sent" in headers
    out = []
    for prompt in ask.prompts:
        answer = plan(
            prompt,
            limit,
            least=int(body.get("min_tokens") or 0),
            ignore_eos=bool(body.get("ignore_eos")),
            thinks=launch.profile.thinks,
            splits=ask.chat and bool(launch.flags.get("reasoning-parser")),
            chat=ask.chat,
            faults=launch.faults,
        )
        sequence = Sequence(
            prompt,
            len(prompt) // 4,
            answer.count,
            arrived,
            output_ids=tokens.pack(answer.ids),
            reason=answer.reason,
            streaming=ask.stream,
            remote=bool((body.get("kv_transfer_params") or {}).get("do_remote_prefill")),
            salt=str(body.get("cache_salt") or body.get("extra_key") or ""),
            order=headers.get("x-request-id", ""),
            follows=follows,
            last=headers.get("x-lcplan-last") == "1",
        )
        out.append((sequence, answer))
    return out


def usage(sequences: list[Sequence], generated: int, *, shows_cached: bool, streamed: bool) -> dict[str, Any]:
    """Return the usage of a request; cached tokens are told when the server is to tell them and there are some."""
    prompt, cached = sum(seq.tokens for seq in sequences), sum(seq.cached for seq in sequences)
    out: dict[str, Any] = {"prompt_tokens": prompt, "total_tokens": prompt + generated, "completion_tokens": generated}
    if shows_cached and cached:
        out["prompt_tokens_details"] = {"cached_tokens": cached}
    elif not streamed:
        out["prompt_tokens_details"] = None
    return out


def _prompts(prompt: Any) -> list[bytes]:
    if isinstance(prompt, str):
        return [_packed(tokens.encode(prompt))]
    if isinstance(prompt, list) and prompt:
        if isinstance(prompt[0], str):
            return [_packed(tokens.encode(str(one))) for one in prompt]
        if isinstance(prompt[0], list):
            return [_packed(one) for one in prompt]
        return [_packed(prompt)]
    raise Refused(
        400, "prompt must be a non-empty string, list of strings, list of token ids or list of those", param="prompt"
    )


def _packed(ids: Any) -> bytes:
    try:
        packed = tokens.pack(ids)
    except (TypeError, OverflowError):
        raise Refused(400, "a prompt of token ids must hold non-negative integers only", param="prompt") from None
    if not packed:
        raise Refused(400, "The decoder prompt cannot be empty", param="prompt")
    return packed


def _conversation(body: Mapping[str, Any]) -> bytes:
    """The chat template: each message between two special ids, then the turn of the assistant."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refused(400, "messages must be a non-empty list", param="messages")
    ids: list[int] = []
    for message in messages:
        if not isinstance(message, dict):
            raise Refused(400, "a message is a mapping with role and content", param="messages")
        content = message.get("content") or ""
        if isinstance(content, list):
            content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        ids += [BEGIN_TURN, *tokens.encode(f"{message.get('role')}\n{content}"), END_TURN]
    return tokens.pack([*ids, BEGIN_TURN, *tokens.encode("assistant\n")])
