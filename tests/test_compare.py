"""Repeats: blocks in a plan, and `runs compare`, which claims no difference that chance explains."""

from __future__ import annotations

import json
import math
import random
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from lcplan.audit import student
from lcplan.audit.compare import Row, compare
from lcplan.base.diagnostics import LcplanError
from lcplan.record import ledger
from tests import statekit
from tests.kit import campaign, lcplan

RECIPE = """\
lcplan: 1
engines: {vllm: {version: 0.31.0}}
models: {m: {path: /models/tiny, context: 32K}}
nodes: {n: {gpu: {model: H200, memory: 141GiB, count: 4}, quads: {a: {gpus: [0, 1, 2, 3], ports: 8000-8009}}}}
stacks:
  s:
    model: m
    engine: vllm
    layout: tp4
    context: 32K
    variants: {x: {args: {max-num-seqs: 8}}, y: {args: {max-num-seqs: 16}}, z: {args: {max-num-seqs: 32}}}
workloads: {w: {kind: grid, output: 8, points: [{prompt: 1K, users: 2}]}}
experiments: {e: {stacks: [s], variants: [x, y, z], workloads: [w], repeats: 4}}
"""


def density(t: float, freedom: int) -> float:
    log = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
    return math.exp(log - (freedom + 1) / 2 * math.log1p(t * t / freedom))


@pytest.mark.parametrize("freedom", range(1, 31))
def test_quantiles_hold_95_percent(freedom: int) -> None:
    end, steps = student.quantile(freedom), 4000
    h = end / steps
    inner = sum((4 if i % 2 else 2) * density(i * h, freedom) for i in range(1, steps))
    area = 2 * h / 3 * (density(0, freedom) + inner + density(end, freedom))
    assert area == pytest.approx(0.95, abs=1e-4)


def test_an_interval_holds_the_mean_as_often_as_it_says() -> None:
    chance = random.Random(1)
    samples = [[chance.gauss(10, 1) for _ in range(4)] for _ in range(2000)]
    held = sum(abs(fmean(one) - 10) <= (student.half_width(one) or 0) for one in samples)
    assert held / len(samples) == pytest.approx(0.95, abs=0.02)


def test_fractions_of_freedom_are_rounded_down_and_many_stay_safe() -> None:
    assert student.quantile(2.9) == student.quantile(2) and student.quantile(500) == student.quantile(30)


def seal(root: Path, side: str, values: list[float], cell: str = "grid.users=4", first: int = 1, **others: Any) -> None:
    """Seal one run per value: repeats of one launch."""
    for at, value in enumerate(values, first):
        name = cell if at == 1 else f"{cell}.r{at}"
        made = statekit.cell(name, metrics={"ttft_s": statekit.metric(value, "s")}, repeat=at, kind="grid",
                             definition={"prompt": 1024})  # fmt: skip
        statekit.seal(root, f"{side}{at}", cells=[made], fingerprint=side, variant=side, **others)


def only(root: Path, a: str = "variant=a", b: str = "variant=b") -> Row:
    [row] = compare(root, a, b).rows
    return row


NEAR, FAR = [10.0, 10.1, 9.9, 10.0], [12.0, 12.1, 11.9, 12.0]
CASES = [
    (NEAR, FAR, True, "20 % higher"),
    (FAR, NEAR, True, "16.7 % lower"),
    (NEAR, [10.05, 10.15, 9.95, 10.0], False, "within the 95 % interval"),
    ([10.0], [20.0], False, "one run has no interval"),
    (NEAR, NEAR, False, "the means are equal"),
    ([10.0, 10.0], [10.0, 10.0 + 1e-12], False, "equal"),
]


@pytest.mark.parametrize(("a", "b", "claimed", "words"), CASES)
def test_a_difference_is_claimed_only_beyond_chance(
    a: list[float], b: list[float], claimed: bool, words: str, tmp_path: Path
) -> None:
    seal(tmp_path, "a", a)
    seal(tmp_path, "b", b)
    row = only(tmp_path)
    assert (row.claimed, row.a.n, row.b.n) == (claimed, len(a), len(b))
    assert words in row.sentence


def test_the_noise_of_other_repeated_cells_counts(tmp_path: Path) -> None:
    """Two pairs that happen to agree well say little when other cells of the same launches scatter by 10 %."""
    seal(tmp_path, "a", [10.0, 10.01])
    seal(tmp_path, "b", [10.5, 10.51])
    assert only(tmp_path).claimed
    other = "grid.users=8"
    seal(tmp_path, "a", [10.0, 9.0, 11.0, 10.0, 9.0, 11.0], other, first=11)
    row = next(one for one in compare(tmp_path, "variant=a", "variant=b").rows if one.cell == "grid.users=4")
    assert not row.claimed and "noise of repeated identical cells" in row.sentence
    assert row.floor is not None and row.half_width is not None and row.floor > 0.5 > row.half_width


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    seal(tmp_path, "a", NEAR)
    seal(tmp_path, "b", FAR)
    seal(tmp_path, "c", NEAR, "needle")
    seal(tmp_path, "s", NEAR, simulated=True)
    made = compare(tmp_path, "variant=a", "variant=c")
    assert made.rows == () and made.left_out == ("grid.users=4 is only in A", "needle is only in B")
    wrong = [
        ("variant=a", "variant=s", "compare-mixed"),
        ("cell=grid*,simulated=false", "a1", "not-repeats"),
        ("variant=a", "variant=q", "selector-matches-nothing"),
        ("a1", "zz", "unknown-run"),
    ]
    for a, b, code in wrong:
        with pytest.raises(LcplanError) as found:
            compare(tmp_path, a, b)
        assert found.value.diagnostics[0].code == code
    assert only(tmp_path, "a1", "b1").a.n == 1
    ledger.append(tmp_path, "retracted", "b4", why="wrong")
    assert only(tmp_path).b.n == 3


def test_repeats_run_in_blocks_and_are_compared(tmp_path: Path) -> None:
    campaign(tmp_path / "recipes", RECIPE)
    ran = lcplan("plan", "recipes", "--runtime", "sim", "--json", cwd=tmp_path)
    launches = sorted(json.loads(ran.out)["launches"], key=lambda one: one["start_s"])
    blocks = [[one["variant"] for one in some] for _, some in groupby(launches, key=lambda one: one["repeat"])]
    assert [sorted(block) for block in blocks] == [["x", "y", "z"]] * 4
    assert len({tuple(block) for block in blocks}) > 1
    text = lcplan("show", "plans/plan.json", cwd=tmp_path).out
    assert "repeats in 4 blocks" in text
    again = lcplan("plan", "recipes", "--runtime", "sim", "--json", cwd=tmp_path)
    assert json.loads(again.out)["launches"] == json.loads(ran.out)["launches"]
    assert lcplan("sim", "record", "plans/plan.json", cwd=tmp_path).code == 0
    ran = lcplan("runs", "compare", "variant=x", "variant=y", cwd=tmp_path)
    assert ran.code == 0 and "simulated: no measurement" in ran.out, ran.err
    assert "n=4" in ran.out and "no difference shown: the means are equal" in ran.out
    shown = json.loads(lcplan("runs", "compare", "variant=x", "variant=y", "--json", cwd=tmp_path).out)
    assert len(shown["a"]) == 4 and {row["a"]["n"] for row in shown["rows"]} == {4}
