"""Selectors: `key=glob[,key=glob...]`, also `!=`, and `>=`, `<=`, `>`, `<` for numbers. All terms of one must hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeVar

from lcplan.base.diagnostics import fail, nearest
from lcplan.base.units import parse_tokens

_TERM = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.-]*)\s*(>=|<=|!=|>|<|=)\s*(.*?)\s*")
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Term:
    """One condition on one fact."""

    key: str
    operator: str
    value: str

    def holds(self, fact: object) -> bool:
        """Return whether a fact (a word, a number, or several of them, of which one suffices) meets the condition."""
        if isinstance(fact, (list, tuple, set, frozenset)):
            if self.operator == "!=":
                return all(self.holds(one) for one in fact)
            return any(self.holds(one) for one in fact)
        if self.operator == "=":
            return self._equals(fact)
        if self.operator == "!=":
            return not self._equals(fact)
        bound = _number(self.value)
        if bound is None or not isinstance(fact, (int, float)):
            return False
        return {">=": fact >= bound, "<=": fact <= bound, ">": fact > bound, "<": fact < bound}[self.operator]

    def _equals(self, fact: object) -> bool:
        if fact is None:
            return self.value == ""
        number = _number(self.value)
        if number is not None and isinstance(fact, (int, float)):
            return fact == number
        return fnmatchcase(str(fact), self.value)


@dataclass(frozen=True, slots=True)
class Selector:
    """What one option selects."""

    text: str
    terms: tuple[Term, ...]

    @classmethod
    def parse(cls, text: str) -> Selector:
        """Return the selector of an option's text. Raises LcplanError `bad-selector`."""
        terms = []
        for part in text.split(","):
            found = _TERM.fullmatch(part)
            if not found:
                raise _bad(text, f"'{part.strip()}' is no `key=glob`")
            term = Term(*found.groups())
            if term.operator in (">=", "<=", ">", "<") and _number(term.value) is None:
                raise _bad(text, f"'{term.value}' is no number to compare {term.key} with")
            terms.append(term)
        return cls(text, tuple(terms))

    def matches(self, facts: Mapping[str, object]) -> bool:
        """Return whether all terms hold; a fact that is not there meets no term."""
        return all(term.key in facts and term.holds(facts[term.key]) for term in self.terms)


def select(
    options: Sequence[str], items: Iterable[_Item], facts_of: Callable[[_Item], Mapping[str, object]]
) -> list[_Item]:
    """Return the items that any option selects, in their order; all of them when there is no option.

    Raises LcplanError: `bad-selector`, or `selector-matches-nothing` with the keys that there are.
    """
    everything = list(items)
    if not options:
        return everything
    selectors = [Selector.parse(option) for option in options]
    facts = [facts_of(item) for item in everything]
    for selector in selectors:
        if not any(selector.matches(fact) for fact in facts):
            raise _nothing(selector, facts)
    return [item for item, fact in zip(everything, facts, strict=True) if any(s.matches(fact) for s in selectors)]


def _number(text: str) -> float | None:
    try:
        return parse_tokens(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None


def _bad(text: str, sentence: str) -> Exception:
    return fail(
        "bad-selector",
        f"selector '{text}': {sentence}",
        "write for example stack=glm53*,prompt>=524288; several options are a union",
    )


def _nothing(selector: Selector, facts: Sequence[Mapping[str, object]]) -> Exception:
    keys = sorted({key for fact in facts for key in fact})
    hints = [nearest(term.key, keys) for term in selector.terms if term.key not in keys]
    listed = f"keys: {', '.join(keys)}" if keys else "there is nothing to select from"
    return fail(
        "selector-matches-nothing",
        f"selector '{selector.text}' matches nothing",
        "; ".join(filter(None, [*hints, listed])),
    )
