"""What the simulated model says: the needle it was asked for, after some thinking where it thinks, else prose."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lcplan.sim import needle, tokens

if TYPE_CHECKING:
    from lcplan.sim.faults import Faults

END_OF_TEXT = 2
_PROSE = [
    *tokens.encode(" A café."),
    *(tokens.FIRST_WORD + at * 37 % len(tokens.WORDS) for at in range(247)),
]
_PROSE_TEXTS = tokens.texts(_PROSE)
_THOUGHT = (
    "The question asks for the secret code that the text gives. It says:{sentence}. So the answer is that number."
)


@dataclass(frozen=True, slots=True)
class Answer:
    """Tokens to be generated: a planned head, then prose without end. `thought` of them, the first, are reasoning."""

    ids: list[int]
    texts: list[str]
    count: int
    thought: int
    reason: str

    def text(self, start: int, end: int) -> str:
        """Return the text of the tokens start..end."""
        if end - start == 1:
            return self.texts[start]
        return "".join(self.texts[start:end])


def plan(
    prompt: bytes, limit: int, *, least: int, ignore_eos: bool, thinks: bool, splits: bool, chat: bool, faults: Faults
) -> Answer:
    """Return the answer to a prompt (packed ids) with at most `limit` tokens.

    `splits` says that a reasoning parser takes the thoughts out of the text; without it they end in `</think>`.
    """
    found = needle.find(prompt)
    head: list[int] = []
    thought = 0
    if thinks and (chat or found):
        text = _THOUGHT.format(
            sentence=f" {found.sentence.strip()}" if found and not _missed(found, faults) else " nothing"
        )
        head = tokens.encode(text)
        thought = len(head) if splits else 0
        head += [] if splits else tokens.encode("</think>\n\n")
    if found:
        missed = _missed(found, faults)
        head += tokens.encode("I could not find it." if missed else f"The secret code is {found.code}.")
    natural = len(head) + 1 + (0 if found else 32 + zlib.crc32(prompt[-256:]) % 96)
    count = limit if ignore_eos else min(limit, max(least, natural))
    reason = "stop" if count < limit or (count == natural and not ignore_eos) else "length"
    return Answer(*_tokens(head, count, ends=reason == "stop"), count, min(thought, count), reason)


def _missed(found: needle.Needle, faults: Faults) -> bool:
    return faults.misses(found.depth, found.code)


def _tokens(head: list[int], count: int, *, ends: bool) -> tuple[list[int], list[str]]:
    left = max(0, count - len(head))
    cycles = left // len(_PROSE) + 1
    ids = (head + _PROSE * cycles)[:count]
    texts = (tokens.texts(head) + _PROSE_TEXTS * cycles)[:count]
    if ends and count:
        ids[-1], texts[-1] = END_OF_TEXT, ""
    return ids, texts
