"""A streamed reply as it arrives: which chunks carry tokens, when, and what the server says of itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lcplan.workload.sse import EventReader

_decode = json.JSONDecoder().raw_decode  # without the guesses of json.loads: this runs for every token
_CHANNELS = ("content", "reasoning", "reasoning_content", "tool_calls")


class Stream:
    """Reads a streamed completion (or chat completion) of vLLM, SGLang or another OpenAI-compatible server.

    `chunks` are the times of the chunks that carry tokens: on completions every chunk with a choice, whatever its text
    (a token may decode to nothing); on chat every delta of any channel, but not the bare role frame. `origin` None
    takes the caller's times; else times are the origin plus the simulator's stamp, `: t=<seconds>`, before each chunk.
    """

    def __init__(self, *, chat: bool = False, origin: int | None = None, keep_text: bool = False) -> None:
        self.chunks: list[int] = []
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.finish: str | None = None
        self.error: str | None = None
        self._reader = EventReader()
        self._chat = chat
        self._origin = origin
        self._stamp = origin
        self._ended = False
        self._keep_text = keep_text
        self._text: list[str] = []

    @property
    def text(self) -> str:
        """What was generated, reasoning included, when it was to be kept."""
        return "".join(self._text)

    def feed(self, now: int, piece: bytes) -> None:
        """Take a piece of the stream that arrived at `now` (ns)."""
        for is_data, line in self._reader.feed(piece):
            self._take(now, is_data, line)

    def close(self, now: int) -> None:
        """Take the end of the stream; one that ends before the server said so is an error."""
        for is_data, line in self._reader.close():
            self._take(now, is_data, line)
        if not self._ended and self.finish is None and self.error is None:
            self.error = "the stream ended before the answer was complete"

    def _take(self, now: int, is_data: bool, line: bytes) -> None:
        if not is_data:
            self._comment(line)
        elif line == b"[DONE]":
            self._ended = True
        else:
            self._chunk(now if self._stamp is None else self._stamp, line)

    def _comment(self, line: bytes) -> None:
        if self._origin is not None and line.startswith(b"t="):
            try:
                self._stamp = self._origin + round(float(line[2:]) * 1e9)
            except (ValueError, OverflowError):
                self.error = "a stamp of the simulator is no number"

    def _chunk(self, now: int, line: bytes) -> None:
        try:
            chunk: Any = _decode(line.decode().strip())[0]
        except ValueError:
            self.error = self.error or "the stream holds a chunk that is not JSON"
            return
        if not isinstance(chunk, dict):
            return
        if chunk.get("error") or chunk.get("object") == "error":
            inner = chunk.get("error") or chunk
            self.error = str(inner.get("message") if isinstance(inner, Mapping) else inner)[:300]
            return
        choices = chunk.get("choices")
        if choices and isinstance(choices, list) and isinstance(choices[0], dict):
            choice = choices[0]
            if not self._chat or _carries_token(choice):
                self.chunks.append(now)
            if choice.get("finish_reason") is not None:
                self.finish = str(choice["finish_reason"])
            if self._keep_text:
                self._text.append(_text_of(choice, self._chat))
        if chunk.get("usage"):
            self._usage(chunk["usage"])

    def _usage(self, usage: object) -> None:
        self.prompt_tokens = _count(usage, "prompt_tokens", self.prompt_tokens)
        self.output_tokens = _count(usage, "completion_tokens", self.output_tokens)
        details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
        self.cached_tokens = _count(details, "cached_tokens", self.cached_tokens)


def _count(holder: object, key: str, known: int | None) -> int | None:
    """Return a count of a usage frame, or what is known already when the frame has none."""
    value = holder.get(key) if isinstance(holder, dict) else None
    return value if type(value) is int else known


def _carries_token(choice: Mapping[str, Any]) -> bool:
    delta = _delta(choice)
    if "role" in delta:
        return any(delta.get(channel) for channel in _CHANNELS)
    return any(delta.get(channel) is not None for channel in _CHANNELS)


def _text_of(choice: Mapping[str, Any], chat: bool) -> str:
    texts = [_delta(choice).get(channel) for channel in _CHANNELS] if chat else [choice.get("text")]
    return "".join(text for text in texts if isinstance(text, str))


def _delta(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    delta = choice.get("delta")
    return delta if isinstance(delta, dict) else {}
