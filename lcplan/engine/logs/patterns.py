"""The shape of the pattern tables: one literal that a line must hold, one regex whose named groups are facts.

Group names are keys of LogFacts (`kv_tokens`, `kv_memory_gib`, ...), `pool_NAME` for a SGLang pool, `choice_NAME` for
what the engine chose by itself, `took` for the seconds of a phase, `unit` for the unit of the line's sizes and `engine`
for a data-parallel rank named in the message. `level` ranks sources of one fact: 0 wins over 1.

Every quantifier is bounded: a line of any length is read in linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Repeat = Literal["last", "first", "min"]
Tier = Literal["cause", "unknown", "died", "failed"]
TIERS: tuple[Tier, ...] = ("cause", "unknown", "died", "failed")


@dataclass(frozen=True, slots=True)
class Fact:
    """A line that states facts. `repeat` says which value counts when one unranked process prints several."""

    needle: str
    regex: re.Pattern[str]
    level: int = 0
    repeat: Repeat = "last"
    phase: str = ""
    chosen: Mapping[str, object] = field(default_factory=dict)
    dialect: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """A line that states a failure: its class, tier (a cause wins over consequences), and named groups of its numbers.

    `facts` maps such a number to the fact that it also is. `any_level` lets a record below ERROR count.
    """

    needle: str
    regex: re.Pattern[str]
    failure: str
    tier: Tier = "cause"
    facts: Mapping[str, str] = field(default_factory=dict)
    any_level: bool = False
    serving: bool = False


@dataclass(frozen=True, slots=True)
class Index:
    """The tables by literal: `words` are those one of which every telling line holds, none within another."""

    words: tuple[str, ...]
    rules: Mapping[str, tuple[Fact | Fault, ...]]


def index(rules: Iterable[Fact | Fault], others: Iterable[str]) -> Index:
    """Return the index of rules; `others` are literals whose lines are telling without a rule."""
    table = tuple(rules)
    literals = {*others, *(rule.needle for rule in table)}
    words = tuple(sorted(w for w in literals if not any(o != w and o in w for o in literals)))
    return Index(words, {word: tuple(rule for rule in table if word in rule.needle) for word in words})


def fact(needle: str, regex: str, level: int = 0, repeat: Repeat = "last", phase: str = "", **chosen: object) -> Fact:
    """Return a Fact; keywords are choices that the line proves by being there."""
    return Fact(needle, re.compile(regex), level, repeat, phase, chosen)


def fault(
    failure: str,
    needle: str,
    regex: str = "",
    tier: Tier = "cause",
    any_level: bool = False,
    serving: bool = False,
    **facts: str,
) -> Fault:
    """Return a Fault; without a regex the needle itself is looked for. Keywords: data key = fact key."""
    return Fault(needle, re.compile(regex or re.escape(needle)), failure, tier, facts, any_level, serving)
