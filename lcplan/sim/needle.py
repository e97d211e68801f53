"""Finding a planted needle: a sentence with a run of digits, which the question at the end of the prompt asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from lcplan.sim import tokens

_DIGIT_RUN = re.compile(rb"[\x18-\x21]{5,12}")  # low bytes of the ids of "0".."9": 1048..1057 = 0x0418..0x0421
_WINDOW = 120
_QUESTION = 200
_WORD = re.compile(r"[a-z]{2,}|\d+")
_SENTENCE_END = re.compile(r"[.!?\n]")


@dataclass(frozen=True, slots=True)
class Needle:
    """A needle: its digits, the sentence around them, and where it stands in the prompt (0 = start, 1 = end)."""

    code: str
    sentence: str
    depth: float


def find(prompt: bytes) -> Needle | None:
    """Return the needle that the end of the prompt (packed ids) asks for, or None when nothing is planted.

    Of several, the one whose sentence shares most words with the question wins, the last one in a draw.
    """
    runs = list(_runs(prompt))
    if not runs:
        return None
    count = len(prompt) // 4
    # A sentence with a code that stands close to the end is no part of the question.
    question = tokens.decode(tokens.unpack(prompt[4 * max(count - _QUESTION, runs[-1][1]) :]))
    asked = set(_WORD.findall(question.lower()))
    best: tuple[int, Needle] | None = None
    for start, end in runs:
        needle = _read(prompt, start, end, count)
        words = set(_WORD.findall(needle.sentence.lower())) - {needle.code}
        score = len(words & asked)
        if score and (best is None or score >= best[0]):
            best = score, needle
    return best[1] if best else None


def _runs(prompt: bytes) -> Iterator[tuple[int, int]]:
    low = prompt[0::4]
    for hit in _DIGIT_RUN.finditer(low):
        start, end = hit.span()
        if all(prompt[at + 1 : at + 4] == b"\x04\x00\x00" for at in range(4 * start, 4 * end, 4)):
            yield start, end


def _read(prompt: bytes, start: int, end: int, count: int) -> Needle:
    before = tokens.decode(tokens.unpack(prompt[4 * max(0, start - _WINDOW) : 4 * start]))
    code = tokens.decode(tokens.unpack(prompt[4 * start : 4 * end]))
    after = tokens.decode(tokens.unpack(prompt[4 * end : 4 * (end + _WINDOW)]))
    return Needle(code, _SENTENCE_END.split(before)[-1] + code + _SENTENCE_END.split(after)[0], start / max(1, count))
