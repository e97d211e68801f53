"""Sizes as users write them. Tokens: `K` = 1024, `M` = 1048576; memory: `GiB` (2**30 bytes)."""

from __future__ import annotations

import re

_TOKENS = re.compile(r"^(\d+)([KM]?)$")
_FACTOR = {"": 1, "K": 1024, "M": 1024 * 1024}
_GIB = re.compile(r"^(\d+(?:\.\d+)?)\s*(GiB|MiB|TiB)?$")
_GIB_FACTOR = {None: 1.0, "GiB": 1.0, "MiB": 1 / 1024, "TiB": 1024.0}


def parse_tokens(value: int | str) -> int:
    """Return a count of tokens. Raises ValueError with a sentence for anything but an integer, `NK` or `NM`.

    Lower-case suffixes are refused on purpose: vLLM reads `1k` as 1000 and `1K` as 1024, SGLang `1M` as 1,000,000.
    """
    if isinstance(value, bool):
        raise ValueError(f"expected a count of tokens, got {value!r}")
    if isinstance(value, int):
        if value < 0:
            raise ValueError(f"expected a positive count of tokens, got {value}")
        return value
    text = str(value).strip()
    found = _TOKENS.match(text)
    if found:
        return int(found[1]) * _FACTOR[found[2]]
    if re.match(r"^\d+(\.\d+)?[km]$", text):
        raise ValueError(
            f"'{text}' is ambiguous: engines disagree about lower-case suffixes; "
            f"write '{text[:-1]}{text[-1].upper()}' for {'1024' if text[-1] == 'k' else '1048576'}s or the plain number"
        )
    raise ValueError(f"expected a count of tokens such as 4096, 32K or 1M, got '{text}'")


def parse_gib(value: float | str) -> float:
    """Return GiB (2**30 bytes) of `141GiB`, `512MiB`, `1.5TiB` or a plain number of GiB. Raises ValueError."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    found = _GIB.match(str(value).strip())
    if not found:
        raise ValueError(f"expected a size such as 141GiB, got '{value}'")
    return float(found[1]) * _GIB_FACTOR[found[2]]


def show_tokens(count: int) -> str:
    """Return tokens for a person: `1M`, `256K` where exact, else digits with thousands separators."""
    if count and count % (1024 * 1024) == 0:
        return f"{count // (1024 * 1024)}M"
    if count and count % 1024 == 0:
        return f"{count // 1024}K"
    return f"{count:,}"


def show_seconds(seconds: float) -> str:
    """Return a duration for a person: `43 s`, `12 min 05 s`, `6 h 30 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
