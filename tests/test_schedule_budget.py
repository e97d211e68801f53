"""A time budget: what is taken fits, what fits is taken."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lcplan.plan.budget import fit
from lcplan.plan.model import Cell, Launch
from lcplan.plan.schedule import makespan, schedule
from tests.schedule_kit import launch, machine

campaign = st.lists(
    st.tuples(st.sampled_from([1, 2, 3, 4, 8]), st.lists(st.integers(5, 900), min_size=1, max_size=4)),
    min_size=1,
    max_size=8,
)


@given(campaign, st.floats(0.1, 1.1), st.integers(0, 1))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_what_is_taken_fits_and_what_fits_is_taken(
    wishes: list[tuple[int, list[int]]], share: float, priority: int
) -> None:
    declared = machine(1, 2)
    some: list[Launch] = []
    seconds: dict[str, float] = {}
    for i, (gpus, cells) in enumerate(wishes):
        one = launch(f"l{i}", gpus, sum(cells))
        one.load_s = 60.0
        for k, took in enumerate(cells):
            one.cells.append(cell(one, f"c{k}", "ef"[(i + k) % 2]))
            seconds[one.cells[-1].fingerprint] = took
        some.append(one)
    whole = schedule(some, declared).makespan
    budget = whole * share
    left = fit(some, declared, seconds, budget, {"e": {}, "f": {"priority": priority}})
    gone = {one.fingerprint for _, one in left}
    kept = [one for one in some if any(c.fingerprint not in gone for c in one.cells)]
    for one in kept:
        assert one.measure_s == sum(seconds[c.fingerprint] for c in one.cells if c.fingerprint not in gone)
    assert schedule(kept, declared).makespan <= budget + 1e-6
    assert bool(left) == (share < 1)
    for one, out in left:
        before = one.measure_s
        one.measure_s += seconds[out.fingerprint]
        assert makespan([*[k for k in kept if k is not one], one], declared) > budget
        one.measure_s = before


def cell(of: Launch, name: str, experiment: str) -> Cell:
    """Return a cell that is to be measured."""
    return Cell(
        name, f"{of.id}.{name}", of.id, [experiment], of.stack, None, "w", "oneshot", {}, {}, 1, 1, 1, "x.yaml:1:1"
    )
