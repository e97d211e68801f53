"""Loads of grids and sweeps: requests that come at a rate, and a needle asked while the load of a point runs."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lcplan.engine.dialect import Counters
from lcplan.workload import counting
from lcplan.workload.parts import merge_parts
from tests.kit import campaign, lcplan, small
from tests.sim_kit import FLASH
from tests.test_workload_sim import run
from tests.workload_kit import cell, delay_server, job, measure

HERE = Path(__file__).parent
USERS = {"kind": "grid", "prompt": 4096, "users": 4, "output": 64}
RATE = {"kind": "grid", "prompt": 4096, "rate": 2, "output": 64, "requests": {"total": 40}}
SWEEP = {"kind": "sweep", "prompt": 4096, "users": 4, "output": 64, "requests": {"per_user": 2, "min": 1}}
NEEDLE = {"needle": True}


@pytest.mark.parametrize("work", [USERS, RATE, SWEEP, SWEEP | {"rate": 4, "requests": {"total": 12}, "users": None}])
def test_a_needle_is_asked_beside_the_load(work: dict[str, Any], tmp_path: Path) -> None:
    plain, [result] = run(FLASH, tmp_path / "plain", work), run(FLASH, tmp_path / "needle", work | NEEDLE)
    assert (result["status"], result["reason"]) == ("done", None), result["sentence"]
    metrics = result["metrics"]
    assert metrics["needles_found"]["value"] == metrics["needles_asked"]["value"] == 1
    assert metrics["sent"] == plain[0]["metrics"]["sent"]
    assert result["rows"][0]["needle_ok"] is True and "needles_found" not in plain[0]["metrics"]
    [row] = [json.loads(line) for line in (tmp_path / "needle" / "niah.log").read_text().splitlines()]
    assert row["ok"] and row["depth"] == 0.5
    merge_parts(tmp_path / "needle")
    kept = pq.read_table(tmp_path / "needle" / "requests.parquet").to_pylist()
    asked, load = [r for r in kept if r["depth"]], [r for r in kept if not r["depth"]]
    assert len(asked) == 1 and len(load) == metrics["sent"]["value"]
    assert min(r["sent_ns"] for r in load) <= asked[0]["sent_ns"] < max(r["last_ns"] for r in load)


def test_a_missed_needle_is_a_result(tmp_path: Path) -> None:
    [result] = run(FLASH, tmp_path, USERS | NEEDLE, faults=[{"fault": "miss_needle"}])
    assert result["status"] == "done"
    assert (result["metrics"]["needles_found"]["value"], result["metrics"]["needles_asked"]["value"]) == (0, 1)


def test_requests_come_at_the_rate(tmp_path: Path) -> None:
    [result] = run(FLASH, tmp_path, RATE)
    assert result["status"] == "done" and result["metrics"]["sent"]["value"] == 40
    assert result["metrics"]["requests_per_s"]["value"] == pytest.approx(2, rel=0.5)
    assert result["metrics"]["requests_per_s"]["unit"] == "requests/s"
    assert result["rows"][0]["users"] is None
    merge_parts(tmp_path)
    sent = sorted(r["sent_ns"] / 1e9 for r in pq.read_table(tmp_path / "requests.parquet").to_pylist())
    gaps = [after - before for before, after in pairwise(sent)]
    assert sent[0] == 0 and sum(gaps) / len(gaps) == pytest.approx(0.5, rel=0.5)
    assert max(gaps) > 2 * min(gaps)  # like independent users, not like a clock


def test_more_than_the_engine_can_do_queues_or_slows(tmp_path: Path) -> None:
    slow, fast = run(FLASH, tmp_path / "a", RATE), run(FLASH, tmp_path / "b", RATE | {"rate": 200})
    assert fast[0]["metrics"]["ttft_s"]["value"] > 2 * slow[0]["metrics"]["ttft_s"]["value"]


def test_a_real_server_is_asked_at_the_rate(tmp_path: Path) -> None:
    work = {"kind": "grid", "prompt": 100, "rate": 50, "output": 4, "requests": {"total": 20}}
    with delay_server(ttft_s=0.03, chunk_s=0.001) as url:
        [result] = measure(job(url, tmp_path), cell(work))
    assert result["reason"] in (None, "client-bound")  # a busy machine may make it late
    assert result["metrics"]["completed"]["value"] == 20
    assert result["metrics"]["requests_per_s"]["value"] == pytest.approx(50, rel=0.7)


def test_the_tool_is_told_the_rate(tmp_path: Path) -> None:
    prefix = [sys.executable, str(HERE / "fake_bench.py"), "{}"]
    work = {"kind": "sweep", "prompt": 1000, "rate": 2.5, "output": 8, "requests": {"total": 4}}
    with delay_server(metrics=False, ttft_s=0.03) as url:
        [result] = measure(job(url, tmp_path, tokenizer="/m"), cell(work, "s", bench=prefix))
    assert result["status"] == "done", result["sentence"]
    argv = json.loads((tmp_path / "bench" / "s.json").read_text())["argv"]
    assert argv[argv.index("--request-rate") + 1] == "2.5" and "--max-concurrency" not in argv


def test_a_needle_is_asked_while_the_tool_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine says that it runs requests, so the needle goes out although the tool has not ended."""

    async def running(*_: Any) -> counting.Snapshot:
        return counting.Snapshot("", Counters(running=2.0))

    monkeypatch.setattr(counting, "snapshot", running)
    prefix = [sys.executable, str(HERE / "fake_bench.py"), '{"seconds": 0.5}']
    work = {"kind": "sweep", "prompt": 1000, "users": 2, "output": 8, "requests": {"per_user": 2}, "needle": True}
    with delay_server(find_code=True, ttft_s=0.03, chunk_s=0.001) as url:
        [result] = measure(job(url, tmp_path, tokenizer="/m"), cell(work, "s", bench=prefix))
    assert result["status"] == "done", result["sentence"]
    assert result["metrics"]["needles_found"]["value"] == result["metrics"]["needles_asked"]["value"] == 1
    assert result["metrics"]["sent"]["value"] == 4


@pytest.mark.parametrize("seconds", [0, 0.3])
def test_no_needle_where_no_load_was_seen(seconds: float, tmp_path: Path) -> None:
    prefix = [sys.executable, str(HERE / "fake_bench.py"), json.dumps({"seconds": seconds})]
    work = {"kind": "sweep", "prompt": 1000, "users": 2, "output": 8, "requests": {"per_user": 2}, "needle": True}
    with delay_server(find_code=True, ttft_s=0.03, metrics=False) as url:
        [result] = measure(job(url, tmp_path, tokenizer="/m"), cell(work, "s", bench=prefix))
    assert result["status"] == "done" and "needles_asked" not in result["metrics"]


def planned(folder: Path, port: int, workload: str) -> Any:
    text = small(port).replace("  w: {kind: oneshot, prompt: 1K, output: 8}", f"  w: {workload}")
    campaign(folder / "recipes", text)
    return lcplan("plan", "recipes", "--runtime", "sim", "--json", cwd=folder)


def test_a_rate_is_an_axis(tmp_path: Path, port: int) -> None:
    axes = "axes: {prompt: [1K], rate: [0.5, 2, 4.0]}, requests: {total: 8}"
    ran = planned(tmp_path, port, f"{{kind: grid, output: 8, needle: true, {axes}}}")
    assert ran.code == 0, ran.err
    cells = [one for one in json.loads(ran.out)["cells"] if one["workload"] == "w"]
    assert [one["cell"] for one in cells] == [f"w.prompt=1024.rate={rate}" for rate in ("0.5", "2", "4")]
    assert "rate 0.5 2 4" in lcplan("show", "plans/plan.json", cwd=tmp_path).out
    ran = lcplan("apply", cwd=tmp_path)
    assert ran.code == 0, ran.out + ran.err
    ran = lcplan("runs", "list", "rate>=2", "--json", cwd=tmp_path)
    assert [one["cell"] for one in json.loads(ran.out)[0]["cells"]] == ["w.prompt=1024.rate=2", "w.prompt=1024.rate=4"]


WRONG = [
    ("{kind: grid, output: 8, points: [{prompt: 1K}]}", "neither users nor a rate"),
    ("{kind: grid, output: 8, points: [{prompt: 1K, users: 1, rate: 2}]}", "users and a rate"),
    ("{kind: grid, output: 8, points: [{prompt: 1K, users: 1}, {prompt: 1K}]}", "neither"),
    ("{kind: grid, output: 8, points: [{prompt: 1K, rate: 2}]}", "total"),
    ("{kind: sweep, prompt: 1K, output: 8, rate: 2, requests: {per_user: 2}}", "total"),
    ("{kind: sweep, prompt: 1K, output: 8, users: 2, requests: {total: 2}}", "per_user"),
    ("{kind: sweep, prompt: 1K, output: 8, axes: {rate: [0]}, requests: {total: 2}}", "above 0"),
    ("{kind: sweep, prompt: 1K, output: 8, rate: fast, requests: {total: 2}}", "above 0"),
]


@pytest.mark.parametrize(("workload", "words"), WRONG)
def test_a_load_that_is_not_clear_is_an_error(workload: str, words: str, tmp_path: Path, port: int) -> None:
    ran = planned(tmp_path, port, workload)
    assert ran.code == 1 and words in ran.err and "Traceback" not in ran.err
