"""Shown numbers against recorded ones: units, rounding, precision. All arithmetic is decimal and exact.

A shown number is right when it is within half of its last digit of the recorded one, ties both ways.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Literal

Verdict = Literal["right", "wrong-value", "wrong-unit", "over-precise"]

_UNITS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    # unit: (family, factor to the family's base, other spellings)
    "s": ("s", "1", ("sec", "secs", "second", "seconds")),
    "ms": ("s", "0.001", ("millisecond", "milliseconds")),
    "µs": ("s", "0.000001", ("us", "μs", "microsecond", "microseconds")),
    "min": ("s", "60", ("mins", "minute", "minutes")),
    "h": ("s", "3600", ("hr", "hrs", "hour", "hours")),
    "tokens": ("tokens", "1", ("token", "tok", "toks")),
    "tokens/s": ("tokens/s", "1", ("token/s", "tok/s", "toks/s", "t/s", "tps", "tokens/sec", "tokens per second")),
    "s/token": ("s/token", "1", ("s/tok",)),
    "ms/token": ("s/token", "0.001", ("ms/tok", "ms per token")),
    "requests/s": ("requests/s", "1", ("req/s", "requests per second")),
    "B": ("B", "1", ("bytes", "byte")),
    "KiB": ("B", str(2**10), ()),
    "MiB": ("B", str(2**20), ()),
    "GiB": ("B", str(2**30), ()),
    "TiB": ("B", str(2**40), ()),
    "MB": ("B", str(10**6), ()),
    "GB": ("B", str(10**9), ()),
    "TB": ("B", str(10**12), ()),
    "ratio": ("1", "1", ("fraction", "x", "×", "times")),
    "%": ("1", "0.01", ("percent", "per cent")),
}
_BY_NAME = {
    name: (family, Decimal(factor))
    for unit, (family, factor, others) in _UNITS.items()
    for name in (unit, *others)
}  # fmt: skip
_SUFFIXES = (
    ("_tokens_per_s", "tokens/s"), ("_requests_per_s", "requests/s"), ("_tokens", "tokens"), ("_ms", "ms"), ("_s", "s"),
    ("_us", "µs"), ("_gib", "GiB"), ("_bytes", "B"), ("_ratio", "ratio"), ("_fraction", "ratio"), ("_percent", "%"),
)  # fmt: skip
_COUNT = ("", "1")
_MULTIPLES = {"": (1,), "k": (1000,), "K": (1024,), "M": (10**6, 2**20)}
"""What a suffix may mean. `M` is 1,000,000 to most readers and 1,048,576 to lcplan: a number right in one is right."""

_FEWEST = 3
"""Decimals that a measured number may always be shown with: 58.6 s may have been measured as 58.600 s."""

_GROUPS = ",_\u00a0\u2009\u202f"
_NUMBER = re.compile(
    rf"(?<![\w.,])(?P<number>[-+\u2212]?(?:\d{{1,3}}(?:[{_GROUPS}]\d{{3}})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?)"
    rf"(?![\d]|\.\d)(?:\s?(?P<multiple>[kKM])(?![\w/]))?"
    rf"(?:[\s\u00a0\u202f]*(?P<unit>{'|'.join(sorted(map(re.escape, _BY_NAME), key=len, reverse=True))})(?![\w/]))?"
)
_IN_HEADER = re.compile(rf"[(\[,]\s*({'|'.join(sorted(map(re.escape, _BY_NAME), key=len, reverse=True))})\s*[)\]]?\s*$")
_WORD = re.compile(r"\s+([A-Za-zµμ][\w/µμ]*)\s*")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A recorded number in its unit; `unit` None means that the unit is not known and any is right.

    A derived number (`derived`) has all the decimals that one may wish for.
    """

    value: Decimal
    unit: str | None
    derived: bool = False

    @property
    def family(self) -> str | None:
        """What kind of unit it is: its family's base unit, "1" for counts and ratios, the word itself when unknown."""
        return None if self.unit is None else family(self.unit)[0]

    @property
    def base(self) -> Decimal:
        """The value in the base unit of its family."""
        return self.value * (family(self.unit)[1] if self.unit is not None else 1)

    def __str__(self) -> str:
        return f"{_plain(self.value)} {self.unit or ''}".strip()


@dataclass(frozen=True, slots=True)
class Shown:
    """A number as a person wrote it: `text` with the multiple but without the unit, at `start` of its line or text."""

    text: str
    value: Decimal
    decimals: int
    multiple: str
    unit: str
    start: int
    grouped: bool


def unit_of(name: str) -> str:
    """Return the unit that a metric's name ends in, "" for a count."""
    return next((unit for suffix, unit in _SUFFIXES if name.endswith(suffix)), "")


def family(unit: str) -> tuple[str, Decimal]:
    """Return the base unit of a unit's family and the factor to it; a word that is no unit is a family of its own."""
    return ("1", Decimal(1)) if unit in _COUNT else _BY_NAME.get(unit, (unit, Decimal(1)))


def factors() -> set[tuple[str, Decimal]]:
    """Return all families with the factors that values may be written in."""
    return set(_BY_NAME.values())


def find(text: str) -> list[Shown]:
    """Return all numbers of a text, with the units that follow them."""
    return [_shown(found) for found in _NUMBER.finditer(text)]


def first(text: str) -> Shown | None:
    """Return the first number of a text; a single word after it is its unit even when no unit is called so."""
    found = _NUMBER.search(text)
    if found is None:
        return None
    shown = _shown(found)
    word = _WORD.fullmatch(text, found.end())
    if not shown.unit and word:
        return replace(shown, unit=word[1])
    return shown


def header_unit(text: str) -> str:
    """Return the unit in a column's header, as in `TTFT (s)`, `TTFT [s]` or `TTFT, s`; "" when there is none."""
    found = _IN_HEADER.search(text)
    return found[1] if found else ""


def compare(shown: Shown, recorded: Quantity) -> Verdict:
    """Return whether a shown number is the recorded one. A number without a unit is read in the recorded unit."""
    if not _comparable(shown, recorded):
        return "wrong-unit"
    if not _within(shown, recorded):
        return "wrong-unit" if shown.unit and _within(replace(shown, unit=""), recorded) else "wrong-value"
    return "over-precise" if _over_precise(shown, recorded) else "right"


def interval(shown: Shown, factor: Decimal) -> list[tuple[Decimal, Decimal]]:
    """Return the least and the greatest base value that a shown number stands for, for each reading of its multiple."""
    spans = []
    for multiple in _MULTIPLES[shown.multiple]:
        middle, half = shown.value * multiple * factor, _half(shown) * multiple * factor
        spans.append((middle - half, middle + half))
    return spans


def distance(shown: Shown, factor: Decimal, base: Decimal) -> Decimal:
    """Return how far a base value is from a shown number, in units of half its last digit."""
    return min(
        abs(base - shown.value * multiple * factor) / (_half(shown) * multiple * factor)
        for multiple in _MULTIPLES[shown.multiple]
    )


def render(recorded: Quantity, like: Shown) -> str:
    """Return the number to show instead: in the shown unit where it fits, no more precise than the record."""
    value, multiple = recorded.value, _MULTIPLES[like.multiple][0]
    if _comparable(like, recorded) and like.unit and recorded.unit is not None:
        value = recorded.base / family(like.unit)[1]
    decimals = like.decimals
    while _over_precise(replace(like, decimals=decimals), recorded):
        decimals -= 1
    shown = (value / multiple).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_EVEN)
    text = f"{shown:,}" if like.grouped or abs(shown) >= 10_000 else f"{shown}"
    return text + like.multiple


def _shown(found: re.Match[str]) -> Shown:
    raw = found["number"]
    plain = re.sub(f"[{_GROUPS}]", "", raw).replace("\u2212", "-")
    value = Decimal(plain)
    return Shown(
        text=raw + (found["multiple"] or ""),
        value=value,
        decimals=max(0, -_exponent(value)),
        multiple=found["multiple"] or "",
        unit=found["unit"] or "",
        start=found.start("number"),
        grouped=plain != raw,
    )


def _comparable(shown: Shown, recorded: Quantity) -> bool:
    if not shown.unit or recorded.family is None:
        return True
    if shown.unit in _BY_NAME:
        return family(shown.unit)[0] == recorded.family
    return recorded.unit in _COUNT or recorded.unit not in _BY_NAME  # a count of anything: users, requests, needles


def _within(shown: Shown, recorded: Quantity) -> bool:
    return distance(shown, _factor(shown, recorded), recorded.base) <= 1


def _factor(shown: Shown, recorded: Quantity) -> Decimal:
    if recorded.unit is None:
        return family(shown.unit)[1] if shown.unit in _BY_NAME else Decimal(1)
    return family(shown.unit or recorded.unit)[1]


def _over_precise(shown: Shown, recorded: Quantity) -> bool:
    """Whether decimals are shown that were not recorded. Zeros at the end of an integer claim nothing."""
    if not shown.decimals or recorded.derived:
        return False
    factor = _factor(shown, recorded)
    last_shown = min(_MULTIPLES[shown.multiple]) * factor * Decimal(1).scaleb(-shown.decimals)
    recorded_factor = family(recorded.unit)[1] if recorded.unit is not None else 1
    return last_shown < recorded_factor * Decimal(1).scaleb(-_decimals(recorded.value))


def _decimals(recorded: Decimal) -> int:
    """Return how many decimals a record carries: none in a count; in a measurement JSON drops zeros at the end."""
    exponent = _exponent(recorded)
    return max(-exponent, _FEWEST) if exponent < 0 else 0


def _half(shown: Shown) -> Decimal:
    return Decimal("0.5").scaleb(-shown.decimals)


def _exponent(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    return exponent if isinstance(exponent, int) else 0


def _plain(value: Decimal) -> str:
    return f"{value:,f}"
