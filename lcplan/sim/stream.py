"""Replies: the chunks of a stream with their virtual stamps, or one JSON body, in an engine's own shape."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lcplan.sim.answer import Answer
from lcplan.sim.launch import Launch
from lcplan.sim.rank import Sequence
from lcplan.sim.requests import Ask

PAIR_EVERY = 61  # vLLM's asynchronous scheduling now and then sends two tokens in one chunk


class Shape(Protocol):
    """How an engine writes replies."""

    launch: Launch
    pairs: bool
    reasoning: str

    def usage(self, sequences: list[Sequence], generated: int, *, streamed: bool) -> dict[str, Any]:
        """Return the usage object of a request with that many tokens generated so far."""
        ...

    def frame(self, ask: Ask, index: int) -> tuple[str, str]:
        """Return what stands before the text (or the delta) of a chunk, and what stands behind its finish reason."""
        ...

    def closing(self, usage: Mapping[str, Any] | None) -> str:
        """Return the end of a chunk, with running usage or without."""
        ...

    def last(self, ask: Ask, usage: Mapping[str, Any]) -> str:
        """Return the JSON of the usage chunk."""
        ...

    def whole(self, ask: Ask, choices: list[dict[str, Any]], usage: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the body of a reply that is not streamed."""
        ...

    def choice(self, ask: Ask, index: int, text: str, thought: str | None, reason: str) -> dict[str, Any]:
        """Return one choice of a reply that is not streamed."""
        ...


@dataclass(slots=True)
class Part:
    """One choice of a stream: how many of its tokens are sent."""

    index: int
    sequence: Sequence
    answer: Answer
    head: str
    tail: str
    sent: int = 0
    held: int = 0
    greeted: bool = False


class Stream:
    """The chunks of one request."""

    def __init__(self, ask: Ask, shape: Shape, served: list[tuple[Sequence, Answer]]) -> None:
        self.ask = ask
        self.shape = shape
        self.parts = [Part(at, seq, answer, *shape.frame(ask, at)) for at, (seq, answer) in enumerate(served)]
        self.stamp = 0.0

    @property
    def sent(self) -> int:
        """Tokens sent so far."""
        return sum(part.sent for part in self.parts)

    @property
    def done(self) -> bool:
        """Whether every token is sent."""
        return all(part.sent == part.answer.count for part in self.parts)

    def chunks(self) -> list[str]:
        """Return the chunks that have come since the last call, each with its stamp in a comment before it.

        The comment is an event of its own: `vllm bench serve` splits a stream at blank lines and skips what begins
        with a colon, data and all.
        """
        out: list[str] = []
        for part in self.parts:
            for stamp, gain in part.sequence.pull():
                self.stamp = max(self.stamp, stamp)
                part.held += gain
                end = part.sent + part.held
                if (
                    self.shape.pairs
                    and part.held == 1
                    and end % PAIR_EVERY == PAIR_EVERY - 1
                    and end < part.answer.count
                ):
                    continue
                out.extend(f": t={stamp:.6f}\n\ndata: {chunk}\n\n" for chunk in self._chunk(part, end))
                part.sent, part.held = end, 0
        return out

    def end(self) -> str:
        """Return the usage chunk, if asked for, and the end of the stream; a comment says how full the pool was."""
        text = f": kv={max(part.sequence.kv_usage for part in self.parts):.6f}\n\n"
        usage = self._usage(self.sent)
        if self.ask.usage_at_end and usage is not None:
            text += f": t={self.stamp:.6f}\n\ndata: {self.shape.last(self.ask, usage)}\n\n"
        return text + "data: [DONE]\n\n"

    def _chunk(self, part: Part, end: int) -> Iterator[str]:
        answer, start = part.answer, part.sent
        final = end == answer.count
        if self.ask.chat and not part.greeted:
            part.greeted = True
            yield f'{part.head}{{"role":"assistant","content":""}}{part.tail}null{self._closing(0)}'
        if not self.ask.chat:
            yield self._written(part, json.dumps(answer.text(start, end)), end, final)
            return
        if start < answer.thought:
            upto = min(end, answer.thought)
            text = json.dumps(answer.text(start, upto))
            yield self._written(part, f'{{"{self.shape.reasoning}":{text}}}', upto, final and upto == end)
            start = upto
        if start < end:
            yield self._written(part, f'{{"content":{json.dumps(answer.text(start, end))}}}', end, final)

    def _written(self, part: Part, text: str, end: int, final: bool) -> str:
        reason = f'"{part.sequence.reason}"' if final else "null"
        return f"{part.head}{text}{part.tail}{reason}{self._closing(self.sent + end - part.sent)}"

    def _closing(self, generated: int) -> str:
        if not self.ask.usage_always:
            return self.shape.closing(None)
        return self.shape.closing(self._usage(generated))

    def _usage(self, generated: int) -> dict[str, Any] | None:
        return _told(self.shape, [part.sequence for part in self.parts], generated, streamed=True)


def whole(ask: Ask, shape: Shape, served: list[tuple[Sequence, Answer]]) -> dict[str, Any]:
    """Return the body of a reply that is not streamed."""
    choices = []
    for at, (_, answer) in enumerate(served):
        thought = answer.text(0, answer.thought) if answer.thought else None
        text = answer.text(answer.thought, answer.count) if answer.count > answer.thought else ""
        choices.append(shape.choice(ask, at, text, thought, answer.reason))
    generated = sum(answer.count for _, answer in served)
    return shape.whole(ask, choices, _told(shape, [seq for seq, _ in served], generated, streamed=False))


def _told(shape: Shape, sequences: list[Sequence], generated: int, *, streamed: bool) -> dict[str, Any] | None:
    """The usage that the client is told, with the faults that change it."""
    faults = shape.launch.faults
    if faults.get("drop_usage") is not None:
        return None
    usage = shape.usage(sequences, generated, streamed=streamed)
    if lie := faults.get("wrong_token_counts"):
        for key in (str(lie["field"]), "total_tokens"):
            usage[key] += int(lie["by"])
    return usage
