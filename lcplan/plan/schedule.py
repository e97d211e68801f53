"""Order: which launch runs in which slot, and when. Deterministic and pure.

Launches that take the most GPUs come first, since a node-wide launch after unequal quads would wait for the longest of
them; slots are nested (halves in quads, quads in nodes), so in that order no GPU waits for another and the makespan is
the load of the fullest GPU. Launches are spread longest first onto the slot that is free first, then improved.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lcplan.plan.blocks import drawn
from lcplan.plan.bound import lower_bound
from lcplan.plan.improve import improve
from lcplan.plan.model import Launch
from lcplan.plan.place import Machine, Shape, Slot, placement, reason, shape_of, slots


@dataclass(frozen=True, slots=True)
class Schedule:
    """Estimated seconds: `makespan`, `bound` (no schedule is shorter), GPU-seconds used and idle until the makespan.

    GPUs that serve entries hold for the whole plan are neither used nor idle.
    """

    makespan: float = 0.0
    bound: float = 0.0
    idle_gpu_s: float = 0.0
    gpu_s: float = 0.0


def schedule(launches: Sequence[Launch], machine: Machine) -> Schedule:
    """Give every launch its placement, start and predecessors; return what the whole takes.

    `launches` are those to run, each with its estimated seconds; each has a slot (see `place.slots`).
    """
    if not launches:
        return Schedule()
    chosen, bound = _arrange(launches, machine, thorough=True)
    makespan = _settle(launches, chosen, machine)
    gpu_s = sum(one.seconds * one.gpus for one in launches)
    evicting = {n for slot in chosen.values() if slot.evicts for n in slot.numbers}
    usable = machine.size - len(machine.held.keys() - evicting)
    return Schedule(makespan, min(bound, makespan), max(0.0, usable * makespan - gpu_s), gpu_s)


def makespan(launches: Sequence[Launch], machine: Machine, *, thorough: bool = False) -> float:
    """Return the seconds that `schedule` would need, and place nothing.

    Quicker without `thorough`, and then never less than with it.
    """
    chosen, _ = _arrange(launches, machine, thorough=thorough)
    return _peak(launches, chosen, machine)


def _arrange(launches: Sequence[Launch], machine: Machine, *, thorough: bool) -> tuple[dict[str, Slot], float]:
    """Return a slot for every launch id, and the lower bound.

    An improvement is kept when it holds on the clock: slots that are not nested (`tp3`, `tp2`) may make a GPU wait.
    """
    groups = _groups(launches, machine)
    bound = lower_bound([(choice, [one.seconds for one in some]) for choice, some in groups], machine)
    best = _spread(groups, machine)
    peak = _peak(launches, best, machine)
    for more in (False, True) if thorough else (False,):
        tried = dict(best)
        improve(groups, tried, machine.size, bound, thorough=more)
        found = _peak(launches, tried, machine)
        if found < peak:
            best, peak = tried, found
    return best, bound


def _groups(launches: Sequence[Launch], machine: Machine) -> list[tuple[list[Slot], list[Launch]]]:
    """Return launches by shape with the slots of the shape: the widest first, then those with the least choice."""
    by_shape: dict[Shape, list[Launch]] = {}
    for launch in launches:
        by_shape.setdefault(shape_of(launch), []).append(launch)
    groups = [(slots(machine, shape), some) for shape, some in by_shape.items()]
    return sorted(groups, key=lambda group: (-max(len(slot.numbers) for slot in group[0]), len(group[0])))


def _spread(groups: Iterable[tuple[list[Slot], list[Launch]]], machine: Machine) -> dict[str, Slot]:
    """Return a slot for every launch id: longest first onto the slot that is free first."""
    chosen: dict[str, Slot] = {}
    clock = [0.0] * machine.size
    for choice, some in groups:
        heap = [(max(clock[n] for n in slot.numbers), i) for i, slot in enumerate(choice)]
        heapq.heapify(heap)
        for launch in sorted(some, key=lambda one: -one.seconds):
            ready, i = heap[0]
            chosen[launch.id] = choice[i]
            for n in choice[i].numbers:
                clock[n] = ready + launch.seconds
            heapq.heapreplace(heap, (ready + launch.seconds, i))
    return chosen


def _in_order(launches: Sequence[Launch], chosen: dict[str, Slot]) -> list[Launch]:
    """Return launches as they start: the widest first, then by priority, then blocks of repeats, then as declared."""
    place = drawn(launches)
    return sorted(launches, key=lambda one: (-len(chosen[one.id].numbers), -one.priority, place(one)))


def _peak(launches: Sequence[Launch], chosen: dict[str, Slot], machine: Machine) -> float:
    clock = [0.0] * machine.size
    for launch in _in_order(launches, chosen):
        numbers = chosen[launch.id].numbers
        end = max(clock[n] for n in numbers) + launch.seconds
        for n in numbers:
            clock[n] = end
    return max(clock)


def _settle(launches: Sequence[Launch], chosen: dict[str, Slot], machine: Machine) -> float:
    """Give launches start, predecessors and placement; return when the last one ends."""
    clock = [0.0] * machine.size
    last: list[str] = [""] * machine.size
    for launch in _in_order(launches, chosen):
        slot = chosen[launch.id]
        launch.start_s = max(clock[n] for n in slot.numbers)
        launch.after = tuple(dict.fromkeys(last[n] for n in slot.numbers if last[n]))
        for n in slot.numbers:
            clock[n] = launch.start_s + launch.seconds
            last[n] = launch.id
        launch.placement = placement(machine, slot, launch.gpus, reason(launch, slot))
    return max(clock)
