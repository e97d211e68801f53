"""Prompts as token ids of exact length, each unique, ready to be sent as JSON.

A prompt is kept as the text of its JSON list: a million ids cost some milliseconds and no Python integers. All ids of
a filler have the same number of digits, so that a byte string can be filled digit by digit with strided slices.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

SALT_TOKENS = 8
_COMMON_VOCABULARY = 30_000  # no model worth serving for long context has fewer ordinary tokens


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids: their JSON text without brackets, and how many they are."""

    text: bytes
    tokens: int

    def __add__(self, other: Prompt) -> Prompt:
        if not self.tokens or not other.tokens:
            return self if self.tokens else other
        return Prompt(self.text + b"," + other.text, self.tokens + other.tokens)

    def cut(self, tokens: int) -> Prompt:
        """Return the first `tokens` ids."""
        return self if tokens >= self.tokens else Prompt(b",".join(self.text.split(b",")[:tokens]), tokens)


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes the prompts of one measurement its own. `attempt` is that of the cell, joined with that of the run."""

    lineage: str
    run: str
    cell: str
    repeat: int
    attempt: str

    def salt(self, request: str) -> bytes:
        """Return the 8 bytes that open the prompt of a request: sha256 over everything that tells prompts apart."""
        words = (self.lineage, self.run, self.cell, str(self.repeat), self.attempt, request)
        return hashlib.sha256("\0".join(words).encode()).digest()[:SALT_TOKENS]

    def seed(self) -> int:
        """Return a seed of 31 bits for tools that want a number."""
        return int.from_bytes(self.salt("seed")[:4], "big") & 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class Alphabet:
    """A range of ordinary token ids with one digit count: `first` leading digits (from 1), then `width - 1` free ones.

    Special tokens stand at the very start or the very end of a vocabulary; the range keeps away from both.
    """

    first: int = 2
    width: int = 5

    @property
    def low(self) -> int:
        """The least id of the range."""
        return int(10 ** (self.width - 1))


def alphabet(vocabulary: int | None = None) -> Alphabet:
    """Return the range to use for a vocabulary of this size (None: not known). Raises ValueError below 400 ids."""
    size = min(vocabulary or _COMMON_VOCABULARY, _COMMON_VOCABULARY)
    digits = str(size)
    first, width = int(digits[0]) - 1, len(digits)
    if first < 1:
        first, width = 9, width - 1
    if width < 3 or first * 10 ** (width - 1) < 256:
        raise ValueError(f"a vocabulary of {size} ids is too small for prompts that can be told apart")
    return Alphabet(first, width)


def filler(seed: bytes, tokens: int, ids: Alphabet) -> Prompt:
    """Return `tokens` pseudo-random ordinary ids; equal seeds give equal ids on every machine."""
    if tokens <= 0:
        return Prompt(b"", 0)
    stride = ids.width + 1
    noise = hashlib.shake_128(seed).digest(tokens * ids.width)
    text = bytearray(b"," * (tokens * stride))
    text[0::stride] = noise[:tokens].translate(_digits(1, ids.first))
    for place in range(1, ids.width):
        text[place::stride] = noise[tokens * place : tokens * (place + 1)].translate(_digits(0, 10))
    return Prompt(bytes(text[:-1]), tokens)


def salted(salt: bytes, tokens: int, ids: Alphabet) -> Prompt:
    """Return a prompt of exactly `tokens` ids that opens with a salt, one token a byte; shorter ones keep its start."""
    opening = [ids.low + byte for byte in salt[: max(tokens, 0)]]
    return of_ids(opening) + filler(salt, tokens - len(opening), ids)


def of_ids(ids: Sequence[int]) -> Prompt:
    """Return the prompt of given ids."""
    return Prompt(",".join(map(str, ids)).encode(), len(ids))


def body(prompt: Prompt, served: str, output: int, *, forced: bool = True) -> bytes:
    """Return the JSON body of a streamed `/v1/completions` request.

    `forced` asks for exactly `output` tokens (`ignore_eos`); without it the model may stop when it has answered.
    """
    head = {"model": served, "max_tokens": output, "temperature": 0, "stream": True}
    head |= {"stream_options": {"include_usage": True}} | ({"ignore_eos": True} if forced else {})
    return json.dumps(head).encode()[:-1] + b', "prompt": [' + prompt.text + b"]}"


@cache
def _digits(low: int, count: int) -> bytes:
    return bytes(ord("0") + low + value % count for value in range(256))
