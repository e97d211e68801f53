"""Derived values: small expressions over recorded figures, such as `RUN/A#ttft_s / RUN/B#ttft_s`.

Numbers (`1M` is 1048576 tokens), references with a `#`, + - * /, parentheses, floor, ceil, min, max. A reference
may hold `/` and `-`, so an operator beside one stands between spaces.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from lcplan.audit.figures import Quantity
from lcplan.audit.refs import Ref, parse
from lcplan.base.diagnostics import fail

_TOKEN = re.compile(
    r"\s*(?:(?P<ref>[A-Za-z0-9][^\s()#*+,]*#[A-Za-z0-9_][\w.]*)"
    r"|(?P<number>\d[\d_]*(?:\.\d+)?)(?P<multiple>[KM]?)(?![\w.])"
    r"|(?P<name>floor|ceil|min|max)(?=\s*\()|(?P<sign>[-+*/(),\u00d7\u00f7]))"
)
_MULTIPLE = {"K": 1024, "M": 1024 * 1024}
_RATES = {("tokens", "s"): "tokens/s", ("s", "tokens"): "s/token"}


def refs(text: str) -> list[Ref]:
    """Return the references of an expression. Raises LcplanError `bad-expression`."""
    return [parse(value) for kind, value in _tokens(text) if kind == "ref"]


def evaluate(text: str, quantity: Callable[[Ref], Quantity]) -> Quantity:
    """Return the value of an expression in the base unit of its family. Raises LcplanError `bad-expression`.

    Equal units divide to a ratio, tokens and seconds to a rate; a whole number of something, and a unit that does not
    come out of the figures, is None.
    """
    reader = _Reader(text, quantity)
    result = reader.sum()
    if reader.kind != "end":
        raise _bad(text, f"'{reader.value}' is not expected there")
    return result


class _Reader:
    """A reader of one token ahead: sums of products of atoms."""

    def __init__(self, text: str, quantity: Callable[[Ref], Quantity]) -> None:
        self._text, self._quantity = text, quantity
        self._rest = iter(_tokens(text))
        self._next()

    def sum(self) -> Quantity:
        left = self._product()
        while self.value in ("+", "-"):
            sign = 1 if self._take() == "+" else -1
            right = self._product()
            left = Quantity(left.base + sign * right.base, self._common(left, right), derived=True)
        return left

    def _product(self) -> Quantity:
        left = self._atom()
        while self.value in ("*", "/"):
            left = self._times(left) if self._take() == "*" else self._over(left)
        return left

    def _times(self, left: Quantity) -> Quantity:
        right = self._atom()
        units = [q.family for q in (left, right) if q.family != "1"]
        unit = (units or [""])[0] if len(units) < 2 else None
        return Quantity(left.base * right.base, unit, left.derived or right.derived)

    def _over(self, left: Quantity) -> Quantity:
        right = self._atom()
        if not right.base:
            raise _bad(self._text, "it divides by zero")
        over, under = left.family, right.family
        unit = "" if over == under else over if under == "1" else _RATES.get((over or "", under or ""))
        return Quantity(left.base / right.base, unit, derived=True)

    def _atom(self) -> Quantity:
        kind, value = self.kind, self._take()
        if kind == "ref":
            return self._quantity(parse(value))
        if kind == "number":
            multiple = _MULTIPLE.get(value[-1])
            return Quantity(Decimal(value[:-1]) * multiple, "tokens") if multiple else Quantity(Decimal(value), "")
        if kind == "name":
            return self._call(value)
        if value == "-":
            inner = self._atom()
            return Quantity(-inner.base, inner.family, inner.derived)
        if value == "(":
            inner = self.sum()
            self._expect(")")
            return inner
        raise _bad(self._text, f"a figure is expected, not '{value or 'the end'}'")

    def _call(self, name: str) -> Quantity:
        self._expect("(")
        found = [self.sum()]
        while self.value == ",":
            self._take()
            found.append(self.sum())
        self._expect(")")
        if name in ("floor", "ceil"):
            whole = found[0].base.to_integral_value(ROUND_FLOOR if name == "floor" else ROUND_CEILING)
            return Quantity(whole, None)
        for other in found[1:]:
            self._common(found[0], other)
        return (min if name == "min" else max)(found, key=lambda one: one.base)

    def _common(self, left: Quantity, right: Quantity) -> str | None:
        if left.family != right.family and None not in (left.family, right.family):
            raise _bad(self._text, f"{left.unit or 'a number'} and {right.unit or 'a number'} do not add up")
        return left.family

    def _expect(self, sign: str) -> None:
        if self._take() != sign:
            raise _bad(self._text, f"'{sign}' is missing")

    def _take(self) -> str:
        value = self.value
        self._next()
        return value

    def _next(self) -> None:
        self.kind, self.value = next(self._rest, ("end", ""))


def _tokens(text: str) -> list[tuple[str, str]]:
    found, at = [], 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if not match:
            raise _bad(text, f"'{text[at:].strip()}' is not understood")
        at = match.end()
        kind = str(match.lastgroup)
        if kind == "multiple":
            found.append(("number", match["number"] + match["multiple"]))
        else:
            found.append((kind, match[kind].replace("\u00d7", "*").replace("\u00f7", "/")))
    return found


def _bad(text: str, sentence: str) -> Exception:
    return fail(
        "bad-expression",
        f"'{text.strip()}': {sentence}",
        "write for example RUN/A#ttft_s / RUN/B#ttft_s or floor(RUN#capacity.logged.pool_tokens / 1M) * 4",
    )
