"""Placement and order: which launch runs on which quad, and when. Deterministic and pure.

Node-wide launches (and `quiet` ones) take all quads of a node; they come first, since a node-wide launch after unequal
quads would wait for the longer one. The rest is longest-first onto the least loaded quad, then improved by exchanging
launches between the fullest quad and the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lcplan.base.diagnostics import Diagnostic, error
from lcplan.plan.model import Launch, Placement

_IMPROVE_BELOW = 400


@dataclass(slots=True)
class Quad:
    """One quad of one node as the scheduler sees it."""

    node: str
    name: str
    gpus: tuple[int, ...]
    uuids: tuple[str, ...]
    cpus: str | None
    numa: tuple[int, ...]
    ports: tuple[int, int]


@dataclass(slots=True)
class Schedule:
    """Estimated seconds: `makespan`, `bound` (no schedule can be shorter) and idle GPU-seconds until the makespan."""

    makespan: float = 0.0
    bound: float = 0.0
    idle_gpu_s: float = 0.0
    gpu_s: float = 0.0


def quads_of(nodes: Mapping[str, Any]) -> list[Quad]:
    """Return all quads of the declared nodes, in declared order."""
    return [
        Quad(
            node, name, tuple(q["gpus"]), tuple(q.get("uuids") or ()), q.get("cpus"), tuple(q.get("numa") or ()),
            (q["ports"][0], q["ports"][1]),
        )
        for node, declared in nodes.items()
        for name, q in declared["quads"].items()
    ]  # fmt: skip


def check_sizes(launches: Sequence[Launch], quads: Sequence[Quad], problems: list[Diagnostic]) -> None:
    """Append an error for every launch that no node, or not its pinned quad, can hold."""
    from lcplan.base.diagnostics import Source

    totals: dict[str, int] = {}
    for quad in quads:
        totals[quad.node] = totals.get(quad.node, 0) + len(quad.gpus)
    largest = max(totals.values(), default=0)
    for launch in launches:
        place = Source(launch.source.rsplit(":", 2)[0], *map(int, launch.source.rsplit(":", 2)[1:]))
        if launch.gpus > largest:
            problems.append(
                error("layout-too-large", f"{launch.id}: layout {launch.layout} needs {launch.gpus} GPUs, the largest "
                      f"node has {largest}", "choose a smaller layout", place)
            )  # fmt: skip
        elif launch.pin and not any(q.name == launch.pin and len(q.gpus) >= launch.gpus for q in quads):
            problems.append(
                error("pin-too-small", f"{launch.id}: layout {launch.layout} needs {launch.gpus} GPUs, more than quad "
                      f"{launch.pin} has", "drop `quad:` or choose a smaller layout", place)
            )  # fmt: skip


def schedule(launches: Sequence[Launch], quads: Sequence[Quad]) -> Schedule:
    """Give every launch its placement, start and predecessors; return what the whole takes.

    `launches` are those to run, each with its estimated seconds; all fit (see `check_sizes`).
    """
    if not launches:
        return Schedule()
    sizes = _node_sizes(quads)
    wide = [one for one in launches if _wide(one, quads)]
    narrow = [one for one in launches if not _wide(one, quads)]
    wide_of = _spread_wide(wide, sizes)
    base = {node: sum(one.seconds for one in wide_of.get(node, ())) for node in sizes}
    chosen = _spread_narrow(narrow, quads, base)
    _improve(chosen, quads, base)
    return _settle(wide_of, chosen, quads, launches)


def _wide(launch: Launch, quads: Sequence[Quad]) -> bool:
    return launch.gpus > max(len(q.gpus) for q in quads) or launch.quiet


def _node_sizes(quads: Sequence[Quad]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for quad in quads:
        sizes[quad.node] = sizes.get(quad.node, 0) + len(quad.gpus)
    return sizes


def _order(launch: Launch) -> tuple[int, float]:
    return (-launch.priority, -launch.seconds)


def _spread_wide(wide: Sequence[Launch], sizes: Mapping[str, int]) -> dict[str, list[Launch]]:
    made: dict[str, list[Launch]] = {}
    heap = [(0.0, i, node) for i, node in enumerate(sizes)]
    heapq.heapify(heap)
    for launch in sorted(wide, key=_order):
        skipped = []
        while sizes[heap[0][2]] < launch.gpus:
            skipped.append(heapq.heappop(heap))
        load, i, node = heap[0]
        made.setdefault(node, []).append(launch)
        heapq.heapreplace(heap, (load + launch.seconds, i, node))
        for entry in skipped:
            heapq.heappush(heap, entry)
    return made


def _spread_narrow(narrow: Sequence[Launch], quads: Sequence[Quad], base: Mapping[str, float]) -> list[list[Launch]]:
    chosen: list[list[Launch]] = [[] for _ in quads]
    loads = [base[q.node] for q in quads]
    for launch in narrow:
        if launch.pin:
            fitting = [i for i, q in enumerate(quads) if q.name == launch.pin and len(q.gpus) >= launch.gpus]
            i = min(fitting, key=lambda i: (loads[i], i))
            chosen[i].append(launch)
            loads[i] += launch.seconds
    heap = [(load, i) for i, load in enumerate(loads)]
    heapq.heapify(heap)
    for launch in sorted((one for one in narrow if not one.pin), key=_order):
        skipped = []
        while len(quads[heap[0][1]].gpus) < launch.gpus:
            skipped.append(heapq.heappop(heap))
        load, i = heap[0]
        chosen[i].append(launch)
        heapq.heapreplace(heap, (load + launch.seconds, i))
        for entry in skipped:
            heapq.heappush(heap, entry)
    return chosen


def _improve(chosen: list[list[Launch]], quads: Sequence[Quad], base: Mapping[str, float]) -> None:
    """Exchange launches between the fullest quad and another as long as the longer of the two gets shorter."""
    if sum(map(len, chosen)) > _IMPROVE_BELOW:
        return
    loads = [base[q.node] + sum(one.seconds for one in chosen[i]) for i, q in enumerate(quads)]
    for _ in range(_IMPROVE_BELOW):
        full = max(range(len(quads)), key=lambda i: (loads[i], -i))
        best: tuple[float, int, Launch, Launch | None] | None = None
        for i in range(len(quads)):
            if i == full:
                continue
            for mine in chosen[full]:
                if mine.pin or len(quads[i].gpus) < mine.gpus:
                    continue
                for theirs in [None, *chosen[i]]:
                    if theirs is not None and (theirs.pin or len(quads[full].gpus) < theirs.gpus):
                        continue
                    shift = mine.seconds - (theirs.seconds if theirs else 0.0)
                    longer = max(loads[full] - shift, loads[i] + shift)
                    if longer < loads[full] - 1e-6 and (best is None or longer < best[0] - 1e-9):
                        best = (longer, i, mine, theirs)
        if best is None:
            return
        _, i, mine, theirs = best
        chosen[full].remove(mine)
        chosen[i].append(mine)
        if theirs is not None:
            chosen[i].remove(theirs)
            chosen[full].append(theirs)
        shift = mine.seconds - (theirs.seconds if theirs else 0.0)
        loads[full] -= shift
        loads[i] += shift


def _settle(
    wide_of: Mapping[str, Sequence[Launch]], chosen: Sequence[Sequence[Launch]], quads: Sequence[Quad],
    launches: Sequence[Launch],
) -> Schedule:  # fmt: skip
    declared = {one.id: i for i, one in enumerate(launches)}
    clock = {(q.node, q.name): 0.0 for q in quads}
    last: dict[tuple[str, str], str] = {}

    def put(launch: Launch, taken: Sequence[Quad], used: Sequence[Quad], reason: str) -> None:
        keys = [(q.node, q.name) for q in taken]
        launch.start_s = max(clock[k] for k in keys)
        launch.after = tuple(dict.fromkeys(last[k] for k in keys if k in last))
        for k in keys:
            clock[k] = launch.start_s + launch.seconds
            last[k] = launch.id
        launch.placement = _placement(launch, used, reason)

    def in_order(some: Sequence[Launch]) -> list[Launch]:
        return sorted(some, key=lambda one: (-one.priority, declared[one.id]))

    for node, some in wide_of.items():
        own = [q for q in quads if q.node == node]
        for launch in in_order(some):
            if launch.gpus > max(len(q.gpus) for q in own):
                put(launch, own, own, f"{launch.layout} needs {launch.gpus} GPUs: all quads of {node}")
            else:
                home = next(q for q in own if (not launch.pin or q.name == launch.pin) and len(q.gpus) >= launch.gpus)
                put(launch, own, [home], f"quiet: the other quads of {node} stay idle")
    for quad, some in zip(quads, chosen, strict=True):
        for launch in in_order(some):
            reason = f"pinned to quad {quad.name}" if launch.pin else f"{launch.layout} fits a quad; any"
            put(launch, [quad], [quad], reason)
    return _totals(clock, quads, launches)


def _placement(launch: Launch, used: Sequence[Quad], reason: str) -> Placement:
    gpus = [g for q in used for g in q.gpus][: launch.gpus]
    uuids = [u for q in used for u in q.uuids][: launch.gpus]
    cpus = ",".join(q.cpus for q in used if q.cpus) or None
    return Placement(
        used[0].node, tuple(q.name for q in used), tuple(gpus), tuple(uuids) if len(uuids) == len(gpus) else (), cpus,
        tuple(n for q in used for n in q.numa), used[0].ports[0], used[0].ports, reason,
    )  # fmt: skip


def _totals(clock: Mapping[tuple[str, str], float], quads: Sequence[Quad], launches: Sequence[Launch]) -> Schedule:
    makespan = max(clock.values(), default=0.0)
    gpu_s = sum(one.seconds * one.gpus for one in launches)
    wide = [one for one in launches if _wide(one, quads)]
    narrow = [one for one in launches if not _wide(one, quads)]
    nodes = len({q.node for q in quads})
    work = sum(one.seconds for one in wide) / nodes + sum(one.seconds for one in narrow) / len(quads)
    pinned: dict[str, float] = {}
    for one in narrow:
        if one.pin:
            pinned[one.pin] = pinned.get(one.pin, 0.0) + one.seconds
    per_pin = [
        seconds / sum(q.name == name for q in quads) + sum(one.seconds for one in wide) / nodes
        for name, seconds in pinned.items()
    ]
    longest = max((one.seconds for one in launches), default=0.0)
    bound = max([work, longest, *per_pin])
    total = sum(len(q.gpus) for q in quads) * makespan
    return Schedule(makespan, min(bound, makespan), max(0.0, total - gpu_s), gpu_s)
