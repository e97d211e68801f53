"""The gate: log, metrics, prediction and history compared; cells blocked and marked; laws of KV usage; turns."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lcplan.apply import gate
from lcplan.apply.turn import Turn
from lcplan.capacity.fit import Sample, fit_law
from lcplan.capacity.pool import KvPool, Past
from lcplan.plan.model import Cell, Launch
from tests.kit import REPO, campaign, small


def launch_of(folder: Path, **changes: Any) -> Launch:
    """Return a planned launch of one rank and 32K context."""
    from lcplan.plan.desired import desired
    from lcplan.recipe.load import load

    launches, _ = desired(load([campaign(folder / "recipes", small(8000))]), None, [])
    return replace(launches[0], **changes)


def log(*pools: int, concurrency: float | None = None, context: int = 32768) -> SimpleNamespace:
    printed = [concurrency] if concurrency else []
    return SimpleNamespace(kv_tokens=pools, max_concurrency=printed, max_num_seqs=None, max_model_len=context)


def metrics(pool: int, engines: int = 1) -> SimpleNamespace:
    return SimpleNamespace(pool_tokens=pool, engines=engines, concurrency=None)


def test_the_least_of_log_and_metrics_counts(tmp_path: Path) -> None:
    launch = launch_of(tmp_path)
    found = gate.read(launch, log(100_000), metrics(80_000))
    assert found.pool.tokens == 80_000 and found.pool.source == "logged"
    assert [one.code for one in found.warnings] == ["pool-log-metrics"]
    assert gate.read(launch, log(100_000), metrics(100_000)).warnings == ()


def test_ten_percent_apart_is_a_warning(tmp_path: Path) -> None:
    past = Past(("r",), (100_000,), True).as_json()
    launch = launch_of(tmp_path, capacity={"predicted": {"pool_tokens": 100_000}, "history": past})
    assert gate.read(launch, log(91_000), None).warnings == ()
    assert [w.code for w in gate.read(launch, log(80_000), None).warnings] == ["pool-off-prediction",
                                                                               "pool-below-history"]  # fmt: skip
    other = {"predicted": None, "history": past | {"exact": False}}
    assert gate.read(launch_of(tmp_path, capacity=other), log(80_000), None).warnings == ()


def test_fewer_ranks_than_the_layout_are_told(tmp_path: Path) -> None:
    found = gate.read(launch_of(tmp_path, engines=4), log(50_000, 50_000), None)
    assert [one.code for one in found.warnings] == ["ranks-differ"] and found.engines == 2


def test_the_least_of_formula_concurrency_and_law_counts(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, cap=None)
    cell = replace(launch.cells[0], length=4096)
    assert gate.fits(cell, gate.read(launch, log(131_072), None)).fits == 32
    by_line = gate.fits(cell, gate.read(launch, log(131_072, concurrency=3.0), None))
    assert (by_line.fits, by_line.by) == (24, "concurrency")
    past = Past(("r",), (131_072,), True, law=fit_law([Sample(1, 4096, 0.125, 131_072)], 32768)).as_json()
    by_law = gate.fits(
        cell, gate.read(replace(launch, capacity={"history": past}), log(131_072, concurrency=3.0), None)
    )
    assert (by_law.fits, by_law.by) == (8, "law")
    expected = replace(cell, fits={"takes": 10_000.0})
    assert gate.fits(expected, gate.read(launch, log(131_072), None)).fits == 13


def test_declared_capacity_stands_in_for_an_engine_that_says_nothing(tmp_path: Path) -> None:
    found = gate.read(launch_of(tmp_path, capacity={"declared": 65_536}), None, None)
    assert (found.pool.tokens, found.pool.source) == (65_536, "declared")
    assert gate.read(launch_of(tmp_path), None, None).pool.source == "unknown"


@pytest.mark.parametrize(("pool", "small"), [(32_767, True), (32_768, False)])
def test_a_pool_below_one_request_of_the_context(tmp_path: Path, pool: int, small: bool) -> None:
    assert bool(gate.too_small(gate.read(launch_of(tmp_path), log(pool), None))) is small


@pytest.mark.parametrize(
    ("cell", "blocked", "limited"),
    [
        ({"users": 2}, None, False),
        ({"users": 9}, None, True),
        ({"users": 9, "blocks": True}, "9 users, but only 8 fit (pool of 131,072 tokens, logged)", True),
        ({"length": 200_000}, "one sequence of 200,000 tokens does not fit (pool of 131,072 tokens, logged)", True),
        ({"requires": [{"experiment": "e", "sequences": 5, "at": 32768}]},
         "e requires 5 sequences of 32,768 tokens, only 4 fit (pool of 131,072 tokens, logged)", False),
        ({"requires": [{"experiment": "e", "sequences": 5, "at": 32768},
                       {"experiment": "f", "sequences": 4, "at": 32768}]}, None, False),
    ],
)  # fmt: skip
def test_verdicts(tmp_path: Path, cell: dict[str, Any], blocked: str | None, limited: bool) -> None:
    launch = launch_of(tmp_path, cap=None)
    one: Cell = replace(launch.cells[0], **{"length": 16384, "users": 1, **cell})
    capacity = gate.read(launch, log(131_072), None)
    assert gate.verdict(one, gate.fits(one, capacity), capacity) == (blocked, limited)


def test_without_a_pool_nothing_is_said_but_what_the_cap_says(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, cap=4, cap_source="--max-num-seqs")
    capacity = gate.read(launch, None, None)
    over, under = (replace(launch.cells[0], users=users) for users in (5, 4))
    assert gate.verdict(over, gate.fits(over, capacity), capacity) == (None, True)
    assert gate.verdict(under, gate.fits(under, capacity), capacity) == (None, None)


def row(length: int, percent: float, users: int = 1, queued: int = 0, status: str = "done") -> dict[str, Any]:
    return {"prompt_tokens": length - 8, "output_tokens": 8, "users": users, "queued": queued, "status": status,
            "kv_usage_percent": percent}  # fmt: skip


def law_of(folder: Path, rows: list[dict[str, Any]], engines: int = 1) -> dict[str, Any] | None:
    launch = launch_of(folder, engines=engines)
    return gate.law(launch, gate.read(launch, log(*[100_000] * engines), None), [{"rows": rows}])


def test_a_law_is_fitted_from_usage_readings(tmp_path: Path) -> None:
    # A hybrid: a sequence takes 8,000 tokens and three quarters of its length, 32,768 of them at the longest.
    a = 8192.0
    rows = [row(n, (a + 0.75 * n) / 1000) for n in (2000, 8000)] + [row(16000, 2 * (a + 12000) / 1000, users=2)]
    found = law_of(tmp_path, rows)
    assert found is not None
    assert found["a"] == pytest.approx(a, rel=0.01) and found["b"] == pytest.approx(0.75, rel=0.01)
    assert (found["max_model_len"], found["layout"], len(found["samples"])) == (32768, "tp1", 3)
    json.dumps(found)


@pytest.mark.parametrize(
    "reading",
    [row(8000, 3.0), row(8000, 9.0, queued=2), row(8000, 9.0, status="invalid"), row(8000, 0.0)],
    ids=["before the sequence was whole", "others waited", "invalid", "no gauge"],
)
def test_readings_that_tell_nothing_are_left_out(tmp_path: Path, reading: dict[str, Any]) -> None:
    assert law_of(tmp_path, [reading]) is None


def test_of_several_ranks_only_a_lone_user_counts(tmp_path: Path) -> None:
    found = law_of(tmp_path, [row(8000, 20.0, users=4), row(4000, 5.0)], engines=2)
    assert found is not None and [one["length"] for one in found["samples"]] == [4000]


def test_a_law_of_short_sequences_does_not_deny_the_longest() -> None:
    law = fit_law([Sample(1, 9216, 22_790 / 11_304_766, 11_304_766)], 1_048_576)
    assert law is not None and law.tokens(1_048_576) == pytest.approx(1_048_576)
    assert law.tokens(9216) == pytest.approx(22_790)


def test_a_pool_of_other_settings_is_not_certain() -> None:
    assert KvPool(1000, "history", 1, certain=False).at(100).fits == 10


def test_a_prediction_is_calibrated_by_runs_with_other_settings(tmp_path: Path) -> None:
    from lcplan.apply.capacity import assessment
    from lcplan.recipe.load import load

    shape = REPO / "tests" / "cases" / "model_shapes" / "llama-3.1-8b.json"
    text = small(8000).replace("path: /models/tiny", f"path: /models/tiny, config: {shape}")
    recipes, launch = load([campaign(tmp_path / "recipes", text)]), launch_of(tmp_path / "other")
    plain = assessment(recipes, launch, lambda one: None, {}).pool
    past = Past(("r",), (90_000,), False, ratios=(0.9,))
    found = assessment(recipes, launch, lambda one: past, {}).pool
    assert plain.tokens is not None and (found.source, found.tokens) == ("predicted", round(0.9 * plain.tokens))


def test_launches_of_a_node_start_one_after_the_other() -> None:
    async def starts() -> list[str]:
        lock, told, never = asyncio.Lock(), [], asyncio.Event()
        first, second = Turn(lock), Turn(lock)
        await first.take(never)

        async def wait() -> None:
            await second.take(never)
            told.append("second starts")

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        told.append("first has its pool")
        first.give()
        first.give()
        await task
        second.give()
        return told

    assert asyncio.run(starts()) == ["first has its pool", "second starts"]


def test_a_stop_ends_the_wait_for_a_turn() -> None:
    async def stopped() -> tuple[bool, bool]:
        lock, stop = asyncio.Lock(), asyncio.Event()
        first, second = Turn(lock), Turn(lock)
        await first.take(asyncio.Event())
        task = asyncio.create_task(second.take(stop))
        await asyncio.sleep(0)
        stop.set()
        await task
        first.give()
        third = Turn(lock)
        await third.take(asyncio.Event())
        return second.taken, third.taken

    assert asyncio.run(stopped()) == (False, True)
