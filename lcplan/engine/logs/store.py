"""Observations of a log, kept per start, source level, engine and rank, and the rules that make one figure of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from lcplan.engine.logs.lines import Owner
from lcplan.engine.logs.patterns import Repeat

_MOST = 2048  # values kept of one fact: more ranks than any deployment has, so that memory stays constant


class _Key(NamedTuple):
    engine: int | None
    rank: str


class _Value(NamedTuple):
    value: float
    pid: str
    pp: int | None


class Store:
    """Numbers by fact. `epoch` counts the starts in one log: a later start's numbers replace an earlier one's."""

    def __init__(self) -> None:
        self.epoch = 0
        self._facts: dict[str, dict[tuple[int, int], dict[_Key, _Value]]] = defaultdict(dict)

    def put(self, name: str, value: float, owner: Owner, level: int = 0, repeat: Repeat = "last") -> None:
        """Keep a value. Lines of one unranked process are ranks or repetitions: `repeat` says which value counts."""
        rank = owner.rank
        if not rank and owner.process.startswith(("Worker", "VllmWorker", "RayWorker")):
            rank = f"pid {owner.pid}"  # several ranks carry this very name
        slot = self._facts[name].setdefault((self.epoch, level), {})
        key = _Key(owner.engine, rank)
        old = slot.get(key)
        if old is None and len(slot) >= _MOST:
            return
        if (
            old
            and old.pid == owner.pid
            and (repeat == "first" or (repeat == "min" and not rank and old.value <= value))
        ):
            return
        slot[key] = _Value(value, owner.pid, owner.pp)

    def engines(self, *names: str) -> list[int | None]:
        """Return the engines that printed one of the facts, in rank order; [None] = one engine without a name."""
        keys = {key.engine for name in names for slot in self._facts.get(name, {}).values() for key in slot}
        named = sorted(key for key in keys if key is not None)
        return list(named) if named else [None] if keys else []

    def of_engine(self, name: str, engine: int | None, alone: bool) -> float | None:
        """Return an engine's own figure: the smallest over its ranks. `alone`: lines of nobody are this engine's."""
        for slot in self._best(name):
            values = [v.value for k, v in slot.items() if k.engine == engine or (alone and k.engine is None)]
            if values:
                return min(values)
        return None

    def smallest(self, name: str) -> float | None:
        """Return the smallest figure over all ranks; with pipeline stages that of the first stage."""
        for slot in self._best(name):
            first = [v.value for v in slot.values() if v.pp == 0]
            return min(first or [v.value for v in slot.values()])
        return None

    def latest(self, name: str) -> float | None:
        """Return the figure printed last by whoever printed it."""
        for slot in self._best(name):
            return list(slot.values())[-1].value
        return None

    def _best(self, name: str) -> Iterable[dict[_Key, _Value]]:
        slots = self._facts.get(name, {})
        return (slots[at] for at in sorted(slots, key=lambda at: (-at[0], at[1])) if slots[at])
