"""Schedules against a search of all assignments, against the bound, and in time."""

from __future__ import annotations

import random
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcplan.plan.model import Launch
from lcplan.plan.place import Machine, refusal, shape_of, slots
from lcplan.plan.schedule import makespan, schedule
from tests.schedule_kit import launch, machine, uneven


def optimum(launches: list[Launch], declared: Machine) -> float:
    """Return the shortest makespan over every assignment: slots are nested, so it is the load of the fullest GPU."""
    best = float("inf")
    for choice in product(*(slots(declared, shape_of(one)) for one in launches)):
        loads = [0.0] * declared.size
        for one, slot in zip(launches, choice, strict=True):
            for n in slot.numbers:
                loads[n] += one.seconds
        best = min(best, max(loads))
    return best


def overlaps(launches: list[Launch]) -> list[tuple[str, str]]:
    """Return pairs of launches that run at the same time on a common GPU or port of a node."""
    found = []
    for one, other in combinations(launches, 2):
        here, there = one.placement, other.placement
        assert here and there
        if here.node != there.node or one.start_s + one.seconds <= other.start_s + 1e-6:
            continue
        if other.start_s + other.seconds <= one.start_s + 1e-6:
            continue
        ports = here.ports[0] <= there.ports[1] and there.ports[0] <= here.ports[1]
        if set(here.gpus) & set(there.gpus) or ports or (set(here.quads) & set(there.quads) and "quiet" in here.reason):
            found.append((one.id, other.id))
    return found


sizes = st.sampled_from([1, 2, 4, 8])
wish = st.tuples(sizes, st.integers(1, 60), st.sampled_from([None, None, "a", "b"]), st.booleans())


@given(st.lists(wish, min_size=1, max_size=6))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_small_instances_are_within_a_tenth_of_the_optimum(wishes: list[tuple[int, int, str | None, bool]]) -> None:
    declared = machine(1, 2)
    some = [
        launch(f"l{i}", gpus, seconds, pin=pin if gpus <= 4 else None, quiet=quiet and i == 0)
        for i, (gpus, seconds, pin, quiet) in enumerate(wishes)
    ]
    times = schedule(some, declared)
    best = optimum(some, declared)
    assert best - 1e-6 <= times.makespan <= best * 1.1
    assert times.bound <= best + 1e-6
    assert not overlaps(some)


@given(st.lists(st.tuples(st.sampled_from([4, 8]), st.integers(1, 60)), min_size=1, max_size=7), st.integers(1, 2))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_several_nodes_are_within_a_tenth_of_the_optimum(wishes: list[tuple[int, int]], nodes: int) -> None:
    declared = machine(nodes, 2)
    some = [launch(f"l{i}", gpus, seconds) for i, (gpus, seconds) in enumerate(wishes)]
    times, best = schedule(some, declared), optimum(some, declared)
    assert best - 1e-6 <= times.makespan <= best * 1.1
    assert times.bound <= best + 1e-6
    assert not overlaps(some)


@given(
    st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=3), min_size=1, max_size=2),
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 60)), min_size=1, max_size=5),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_quads_of_any_size(nodes: list[list[int]], wishes: list[tuple[int, int]]) -> None:
    declared = uneven(nodes)
    some = [launch(f"l{i}", gpus, seconds) for i, (gpus, seconds) in enumerate(wishes)]
    some = [one for one in some if refusal(declared, shape_of(one), one.layout) is None]
    times = schedule(some, declared)
    best = optimum(some, declared) if some else 0.0
    assert times.bound <= best + 1e-6
    assert best - 1e-6 <= times.makespan <= best * 4 / 3 + 1e-6  # slots such as tp3 and tp2 are not nested
    assert not overlaps(some)


def test_split_launches_run_side_by_side_where_there_are_quads() -> None:
    declared = machine(1, 4)
    roles = {"prefill": {"layout": "tp4"}, "decode": {"layout": "tp2"}}
    some = [launch(f"pd{i}", 6, 100, layout="pd_1p1d", roles=roles) for i in range(2)] + [launch("four", 4, 100)]
    times = schedule(some, declared)
    assert times.makespan == 200 and not overlaps(some)
    used = {name: one.gpus for name, one in some[0].placement.roles.items()} if some[0].placement else {}
    assert used == {"prefill": (0, 1, 2, 3), "decode": (4, 5), "router": ()}


@pytest.mark.parametrize("seed", range(6))
def test_large_instances_are_within_a_tenth_of_the_bound(seed: int) -> None:
    dice = random.Random(seed)
    declared = machine(1 + seed % 3, 2)
    some = [
        launch(f"l{i}", dice.choice([1, 2, 4, 4, 8]), dice.uniform(200, 4000), priority=dice.randrange(3))
        for i in range(dice.randrange(40, 160))
    ]
    times = schedule(some, declared)
    assert times.makespan <= times.bound * 1.1
    assert makespan(some, declared) >= times.makespan
    assert not overlaps(some)


def test_predecessors_are_the_launches_before_it_on_the_same_gpus() -> None:
    declared = machine(1, 2)
    wide, quad, half, other = (launch(n, g, 100) for n, g in (("w", 8), ("q", 4), ("h", 2), ("o", 2)))
    schedule([half, quad, wide, other], declared)
    assert wide.start_s == 0 and quad.after == ("w",) and half.after == ("w",) and other.after == ("w",)
    assert half.placement and other.placement and half.placement.quads == other.placement.quads
    assert half.placement.gpus == (4, 5) and other.placement.gpus == (6, 7)


def test_quiet_launches_keep_the_rest_of_the_node_idle() -> None:
    declared = machine(1, 2)
    quiet, loud = launch("quiet", 4, 100, quiet=True), launch("loud", 4, 50)
    schedule([quiet, loud], declared)
    assert quiet.placement and quiet.placement.quads == ("a",)
    assert loud.start_s == 100 and loud.after == ("quiet",)


def test_priority_orders_what_waits_for_the_same_gpus() -> None:
    declared = machine(1, 1)
    some = [launch("late", 4, 100), launch("soon", 4, 10, priority=5)]
    schedule(some, declared)
    assert some[1].start_s == 0 and some[0].after == ("soon",)


def test_ten_thousand_launches_on_64_nodes() -> None:
    import time

    declared = machine(64, 2)
    some = [launch(f"l{i}", (1, 2, 4, 4, 4, 8)[i % 6], 60 + i * 37 % 1000) for i in range(10_000)]
    began = time.process_time()
    times = schedule(some, declared)
    assert time.process_time() - began < 6  # measured by tests/benchmarks/schedule.py: a second
    assert times.makespan <= times.bound * 1.05
    assert all(one.placement for one in some)
