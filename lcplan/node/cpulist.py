"""CPU lists as Linux prints them (`0-47,96-143`), to sets and back.

Format: https://docs.kernel.org/admin-guide/cputopology.html (cpulist files).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_CPU = 8191
"""The highest CPU number of a Linux kernel (NR_CPUS); a larger one is a typing error, not a machine."""

_PART = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")


def parse_cpus(text: str) -> frozenset[int]:
    """Return the CPUs of a list such as `0-3,8`; blanks are allowed, an empty text is the empty set.

    Raises ValueError with a sentence for anything else: a range that runs backwards, a CPU above `MAX_CPU`.
    """
    cpus: set[int] = set()
    named = 0
    for part in re.split(r"[,\s]+", text.strip()) if text.strip() else ():
        found = _PART.fullmatch(part)
        if not found:
            raise ValueError(f"'{shorten(text)}' is no CPU list; expected for example 0-47,96-143")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise ValueError(f"the range {part} in CPU list '{shorten(text)}' runs backwards")
        if last > MAX_CPU:
            raise ValueError(f"CPU {last} in CPU list '{shorten(text)}' is above {MAX_CPU}")
        named += last - first + 1
        if named > MAX_CPU + 1:
            raise ValueError(f"CPU list '{shorten(text)}' names CPUs more than once")
        cpus.update(range(first, last + 1))
    return frozenset(cpus)


def format_cpus(cpus: Iterable[int]) -> str:
    """Return the shortest CPU list of a set: `0-3,8`. The empty set gives an empty text."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges(cpus))


def ranges(cpus: Iterable[int]) -> list[tuple[int, int]]:
    """Return the runs of consecutive numbers of a set, as (first, last), ascending."""
    runs: list[tuple[int, int]] = []
    for cpu in sorted(set(cpus)):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1] = (runs[-1][0], cpu)
        else:
            runs.append((cpu, cpu))
    return runs


def split_cpus(cpus: Iterable[int], parts: int) -> list[frozenset[int]]:
    """Return a set cut into equal parts, run by run, so that hyper-threads (a second run) stay with their cores."""
    shares: list[set[int]] = [set() for _ in range(parts)]
    for first, last in ranges(cpus):
        size = last - first + 1
        for part, share in enumerate(shares):
            share.update(range(first + size * part // parts, first + size * (part + 1) // parts))
    return [frozenset(share) for share in shares]


def shorten(text: str, width: int = 60) -> str:
    """Return a text for a message: one line, cut at a width."""
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 3] + "..."
