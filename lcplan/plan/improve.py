"""Makes a schedule shorter: exchanges between the fullest GPU and the others, shuffled starts, and a search for few."""

from __future__ import annotations

from collections.abc import Sequence

from lcplan.plan.model import Launch
from lcplan.plan.place import Slot

_EXCHANGE_BELOW = 400
_TRIALS = 200_000
_SEARCH_BELOW = 12
_SEARCH_STEPS = 20_000
"""Launches up to which exchanges and the search are tried, and how many comparisons and steps they may take."""
_SHUFFLED = 2_000
"""Launches that are spread again in shuffled order, over all tries: 200 tries for ten launches, 20 for a hundred."""
_GOOD = 1.005
_NEAR = 1 + 1e-6

Groups = Sequence[tuple[Sequence[Slot], Sequence[Launch]]]


def improve(groups: Groups, chosen: dict[str, Slot], size: int, bound: float, *, thorough: bool = True) -> None:
    """Change the slots in `chosen` (by launch id) where that lowers the load of the fullest of `size` GPUs.

    Stops near `bound`, which no schedule can beat. Without `thorough` only exchanges are tried.
    """
    count = sum(len(some) for _, some in groups)
    if count > _EXCHANGE_BELOW:
        return
    peak = _exchange(groups, chosen, size, bound)
    if thorough and peak > bound * _GOOD:
        peak = _shuffle(groups, chosen, size, bound, peak, _SHUFFLED // count)
    if thorough and count <= _SEARCH_BELOW and peak > bound * _NEAR:
        _Search(groups, size, bound, peak, chosen).run()


def _exchange(groups: Groups, chosen: dict[str, Slot], size: int, bound: float) -> float:
    """Move a launch from the fullest GPU, or swap it with another, while the target stays below it; return the peak."""
    loads = [0.0] * size
    inside: dict[tuple[int, ...], list[Launch]] = {}
    choice_of: dict[str, Sequence[Slot]] = {}
    for choice, some in groups:
        for launch in some:
            choice_of[launch.id] = choice
            inside.setdefault(chosen[launch.id].numbers, []).append(launch)
            _shift(loads, chosen[launch.id], launch.seconds)
    allowed = {id(choice): {slot.numbers: slot for slot in choice} for choice, _ in groups}
    trials = 0
    while trials < _TRIALS:
        peak = max(loads)
        if peak <= bound * _NEAR:
            break
        full = loads.index(peak)
        best: tuple[float, Launch, Slot, Launch | None] | None = None
        for mine in (one for numbers, some in inside.items() if full in numbers for one in some):
            here = chosen[mine.id]
            for slot in choice_of[mine.id]:
                if full in slot.numbers:
                    continue
                there = max(loads[n] for n in slot.numbers)
                others: list[Launch | None] = [None, *inside.get(slot.numbers, ())]
                trials += len(others)
                for theirs in others:
                    shift = mine.seconds - (theirs.seconds if theirs else 0.0)
                    longer = max(there + shift, peak - shift)
                    if shift <= 0 or longer >= peak / _NEAR or (best is not None and longer >= best[0]):
                        continue
                    if theirs is None or here.numbers in allowed[id(choice_of[theirs.id])]:
                        best = (longer, mine, slot, theirs)
        if best is None:
            break
        _, mine, slot, theirs = best
        here = chosen[mine.id]
        _move(mine, here, slot, chosen, inside, loads)
        if theirs is not None:
            back = allowed[id(choice_of[theirs.id])][here.numbers]
            _move(theirs, chosen[theirs.id], back, chosen, inside, loads)
    return max(loads)


def _shuffle(
    groups: Groups, chosen: dict[str, Slot], size: int, bound: float, peak: float, tries: int
) -> float:  # fmt: skip
    """Spread launches anew in orders near longest-first, sometimes onto the second best slot; return the best peak.

    The dice are the same in every run, so that equal recipes give equal plans.
    """
    from random import Random

    dice = Random(0)
    for _ in range(tries):
        loads = [0.0] * size
        made: dict[str, Slot] = {}
        for choice, some in groups:
            for launch in sorted(some, key=lambda one: -one.seconds * dice.uniform(0.6, 1.4)):
                ready = sorted((max(loads[n] for n in slot.numbers), i) for i, slot in enumerate(choice))
                _, i = ready[1 if len(ready) > 1 and dice.random() < 0.2 else 0]
                made[launch.id] = choice[i]
                _shift(loads, choice[i], launch.seconds)
        found = _exchange(groups, made, size, bound)
        if found < peak / _NEAR:
            peak = found
            chosen.update(made)
        if peak <= bound * _GOOD:
            break
    return peak


def _move(
    launch: Launch, here: Slot, there: Slot, chosen: dict[str, Slot], inside: dict[tuple[int, ...], list[Launch]],
    loads: list[float],
) -> None:  # fmt: skip
    inside[here.numbers].remove(launch)
    inside.setdefault(there.numbers, []).append(launch)
    chosen[launch.id] = there
    _shift(loads, here, -launch.seconds)
    _shift(loads, there, launch.seconds)


def _shift(loads: list[float], slot: Slot, seconds: float) -> None:
    for n in slot.numbers:
        loads[n] += seconds


class _Search:
    """Depth first over all assignments, longest launches first, cut where the load reaches the best known peak."""

    def __init__(self, groups: Groups, size: int, bound: float, peak: float, chosen: dict[str, Slot]) -> None:
        self.todo = [(one, choice) for choice, some in groups for one in sorted(some, key=lambda one: -one.seconds)]
        self.loads = [0.0] * size
        self.bound, self.peak, self.chosen = bound, peak, chosen
        self.trail: list[Slot] = []
        self.steps = 0

    def run(self) -> None:
        """Search, and leave the best assignment in `chosen`."""
        self._descend(0)

    def _descend(self, at: int) -> None:
        if at == len(self.todo):
            self.peak = max(self.loads)
            self.chosen.update((one.id, slot) for (one, _), slot in zip(self.todo, self.trail, strict=True))
            return
        launch, choice = self.todo[at]
        by_load = sorted(choice, key=lambda slot: max(self.loads[n] for n in slot.numbers))
        for slot in by_load:
            if max(self.loads[n] for n in slot.numbers) + launch.seconds >= self.peak / _NEAR:
                return
            self.steps += 1
            if self.steps > _SEARCH_STEPS or self.peak <= self.bound * _NEAR:
                return
            self.trail.append(slot)
            _shift(self.loads, slot, launch.seconds)
            self._descend(at + 1)
            _shift(self.loads, slot, -launch.seconds)
            self.trail.pop()
