"""A lower bound of the makespan: no schedule of the same launches on the same machine can be shorter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

from lcplan.plan.place import Machine, Slot


def lower_bound(groups: Sequence[tuple[Sequence[Slot], Sequence[float]]], machine: Machine) -> float:
    """Return the largest of three bounds, in seconds. A group is the slots of a shape and the seconds of its launches.

    Longest launch; work (what must run on a set of GPUs, divided by their number, for every set that some group is
    bound to); pigeonholes (of `k m + 1` launches, `k + 1` share one of `m` slots, so at least the shortest do).
    """
    longest = max(seconds for _, some in groups for seconds in some)
    return max([longest, _work(groups), _pigeonholes(groups, machine)])


def _work(groups: Sequence[tuple[Sequence[Slot], Sequence[float]]]) -> float:
    unions = [frozenset(n for slot in choice for n in slot.numbers) for choice, _ in groups]
    everything = frozenset().union(*unions)
    totals = [sum(some) for _, some in groups]
    return max(
        sum(total * _least(choice, own, area) for (choice, _), own, total in zip(groups, unions, totals, strict=True))
        / len(area)
        for area in {everything, *unions}
    )


def _least(choice: Sequence[Slot], own: frozenset[int], area: frozenset[int]) -> int:
    """Return how many GPUs of an area a launch takes at least, wherever it runs."""
    if own <= area:
        return min(len(slot.numbers) for slot in choice)
    return min(len(area.intersection(slot.numbers)) for slot in choice)


def _pigeonholes(groups: Sequence[tuple[Sequence[Slot], Sequence[float]]], machine: Machine) -> float:
    """Return the bound over the launches of each width and above; on one node after all that take the whole node."""
    quad_of = [at for at, quad in enumerate(machine.quads) for _ in quad.gpus]
    one_node = len(machine.nodes) == 1
    whole = 0.0
    rest: list[tuple[int, set[int], Sequence[float]]] = []
    for choice, some in groups:
        if one_node and all(len(slot.numbers) == machine.size for slot in choice):
            whole += sum(some)
        else:
            width = min(max(Counter(quad_of[n] for n in slot.numbers).values()) for slot in choice)
            rest.append((width, {n for slot in choice for n in slot.numbers}, some))
    best = whole
    for width in {one for one, _, _ in rest}:
        seconds = sorted((s for own, _, some in rest if own >= width for s in some), reverse=True)
        area = set().union(*(numbers for own, numbers, _ in rest if own >= width))
        places = sum(room // width for room in Counter(quad_of[n] for n in area).values())
        sums = [0.0, *accumulate(seconds)]
        for k in range(1, (len(seconds) - 1) // places + 1):
            best = max(best, whole + sums[k * places + 1] - sums[k * places - k])
    return best
