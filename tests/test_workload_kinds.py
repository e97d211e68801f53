"""The kinds of workload end to end: a child process measures the delay server, real and virtual."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lcplan.workload.needle import found
from lcplan.workload.parts import merge_parts
from tests.workload_kit import HERE, by_child, cell, delay_server, job, measure

FAST = {"ttft_s": 0.03, "chunk_s": 0.001}
VIRTUAL = {"stamps": True}
RAMP = {"kind": "ramp", "turns": [1000, 2000, 4000], "output": 8, "conversations": 2}
SWEEP = {"kind": "sweep", "prompt": 1000, "users": 2, "output": 8, "requests": {"per_user": 2, "min": 3}}


def test_a_oneshot_in_virtual_time(tmp_path: Path) -> None:
    with delay_server(ttft_s=58.6, chunk_s=0.007, tokens=512, **VIRTUAL) as url:
        [result] = measure(
            job(url, tmp_path, simulated=True), cell({"kind": "oneshot", "prompt": 1_000_000, "output": 512})
        )
    metrics = result["metrics"]
    assert (result["status"], result["simulated"]) == ("done", True)
    assert metrics["ttft_s"] == {
        "value": 58.6,
        "unit": "s",
        "n": 1,
        "median": 58.6,
        "min": 58.6,
        "max": 58.6,
        "values": [58.6],
    }
    assert metrics["tpot_ms"]["value"] == pytest.approx(7.0)
    assert metrics["prefill_tokens_per_s"]["value"] == pytest.approx(1_000_000 / 58.6)
    assert result["virtual_s"] > 58.6 + 511 * 0.007


def test_a_grid_and_its_raw_numbers(tmp_path: Path) -> None:
    with delay_server(**FAST) as url:
        cells = [
            cell({"kind": "grid", "prompt": 300, "users": users, "output": 4}, f"grid.users={users}")
            for users in (3, 12)
        ]
        few, many = measure(job(url, tmp_path), *cells)
    assert (few["metrics"]["ttft_s"]["n"], len(few["metrics"]["ttft_s"]["values"])) == (3, 3)
    assert "p90" in many["metrics"]["ttft_s"] and "values" not in many["metrics"]["ttft_s"]
    assert (many["metrics"]["sent"]["value"], many["metrics"]["completed"]["value"]) == (12, 12)
    assert few["counters"]["delta"]["queried"] == 900
    assert (tmp_path / "metrics" / "grid.users=3.before.txt").read_text().count("prefix_cache_queries_total") == 1
    merge_parts(tmp_path)
    merge_parts(tmp_path)
    requests = pq.read_table(tmp_path / "requests.parquet").to_pylist()
    assert len(requests) == 15 and len({r["salt"] for r in requests}) == 15
    for row in requests:
        assert 0 <= row["scheduled_ns"] <= row["sent_ns"] < row["first_ns"] <= row["last_ns"]
        assert (row["prompt_tokens"], row["output_tokens"], len(row["chunk_ns"]), row["simulated"]) == (
            300,
            4,
            4,
            False,
        )
    points = pq.read_table(tmp_path / "points.parquet").to_pylist()
    assert [(p["cell"], p["users"], p["status"]) for p in points] == [
        ("grid.users=12", 12, "done"),
        ("grid.users=3", 3, "done"),
    ]
    assert not (tmp_path / "parts").exists()


def test_needles_are_placed_exactly_and_found_behind_reasoning(tmp_path: Path) -> None:
    work = {"kind": "needle", "prompt": 5000, "depths": [0.0, 0.5, 1.0], "output": 32}
    with delay_server(find_code=True, **FAST) as url:
        [result] = measure(job(url, tmp_path), cell(work))
    assert (result["status"], result["metrics"]["needles_found"]["value"]) == ("done", 3)
    log = [json.loads(line) for line in (tmp_path / "niah.log").read_text().splitlines()]
    assert [(row["depth"], row["prompt_tokens"], row["ok"], row["cell"]) for row in log] == [
        (d, 5000, True, "needle") for d in work["depths"]
    ]  # type: ignore[attr-defined]
    assert len({row["code"] for row in log}) == 3
    assert all(row["answer"].startswith("thinking") and row["latency_s"] > 0 for row in log)


@pytest.mark.parametrize(
    ("answer", "ok"),
    [("1234567", True), ("it is 1,234,567.", True), ("**1 234 567**", True), ("hm, 7654321? no: 1234567", True),
     ("91234567", False), ("12345678", False), ("1234 and 567 is it", False), ("", False)],
)  # fmt: skip
def test_an_answer_counts_when_the_code_stands_in_it(answer: str, ok: bool) -> None:
    assert found("1234567", answer) is ok


def test_a_ramp_sends_only_new_tokens_anew(tmp_path: Path) -> None:
    with delay_server(find_code=True, hits=0.5, **VIRTUAL) as url:
        [result] = measure(job(url, tmp_path, simulated=True), cell(RAMP))
    # the server calls half of every prompt cached, which turn 1 cannot be: nothing has been sent before
    assert (result["status"], result["reason"]) == ("invalid", "cache-hits")
    assert [row["reason"] for row in result["rows"]] == ["cache-hits", None, None]
    assert [(row["turn"], row["prompt_tokens"], row["new_tokens"]) for row in result["rows"]] == [
        (1, 1000, 1000),
        (2, 2000, 1000),
        (3, 4000, 2000),
    ]
    assert result["metrics"]["needles_found"]["value"] == 6
    assert result["metrics"]["turn3_hit_rate_percent"]["value"] == 50


def test_a_ramp_goes_on_after_the_last_turn_it_has(tmp_path: Path) -> None:
    with delay_server(find_code=True, **VIRTUAL) as url:
        message = job(url, tmp_path, simulated=True)
        short = RAMP | {"turns": [1000, 2000]}
        [first] = measure(message, cell(short))
        asked = int(urllib.request.urlopen(f"{url}/requests").read())
        [second] = measure(job(url, tmp_path, simulated=True, attempt=2), cell(RAMP, attempt=2))
        again = int(urllib.request.urlopen(f"{url}/requests").read()) - asked
    assert (first["status"], second["status"]) == ("done", "done")
    assert again == 2 + 1  # the third turn of two conversations, and a warm-up
    assert [row["turn"] for row in second["rows"]] == [1, 2, 3]
    assert second["metrics"]["needles_found"]["value"] == 6  # so the prompts did go on from the first attempt's


def test_agents_resend_their_history(tmp_path: Path) -> None:
    work = {"kind": "agent", "history": 1000, "turns": 3, "new": 50, "output": 8, "users": 2}
    with delay_server(answer="well then", **VIRTUAL) as url:
        [result] = measure(job(url, tmp_path, simulated=True), cell(work))
    assert result["status"] == "done"
    rows = [row for row in result["rows"] if row["turn"]]
    assert [(row["turn"], row["prompt_tokens"], row["sent"]) for row in rows] == [
        (1, 1050, 2),
        (2, 1108, 2),
        (3, 1166, 2),
    ]
    assert {"ttft_s", "first_turn_ttft_s"} <= set(result["metrics"])
    merge_parts(tmp_path)
    requests = pq.read_table(tmp_path / "requests.parquet").to_pylist()
    assert sorted(r["new_tokens"] for r in requests) == [50] * 5 + [1050]


def test_a_sweep_reads_the_tool_request_by_request(tmp_path: Path) -> None:
    with delay_server(metrics=False, **FAST) as url:
        prefix = [sys.executable, str(HERE / "fake_bench.py"), '{"longer": 2}']
        [result] = measure(job(url, tmp_path, tokenizer="/models/m"), cell(SWEEP, "sweep.users=2", bench=prefix))
    assert (result["status"], result["metrics"]["ttft_s"]["value"]) == ("done", 0.5)
    assert result["metrics"]["tpot_ms"]["value"] == pytest.approx(20)
    kept = json.loads((tmp_path / "bench" / "sweep.users=2.json").read_text())
    flags = dict(zip(kept["argv"], kept["argv"][1:], strict=False))
    wanted = {"--max-concurrency": "2", "--num-prompts": "4", "--random-input-len": "1000", "--tokenizer": "/models/m"}
    assert wanted.items() <= flags.items()
    assert flags["--seed"] == str(result["seeds"]["seed"])
    assert result["rows"][0]["prompt_tokens"] == 1002


def test_failures_of_the_tool_count_although_it_exits_with_0(tmp_path: Path) -> None:
    with delay_server(metrics=False, **FAST) as url:
        prefix = [sys.executable, str(HERE / "fake_bench.py"), '{"failed": 1}']
        [result] = measure(job(url, tmp_path), cell(SWEEP, bench=prefix))
    assert (result["status"], result["reason"]) == ("invalid", "request-failed")
    assert "Service Unavailable" in result["sentence"]
    assert (result["metrics"]["sent"]["value"], result["metrics"]["completed"]["value"]) == (4, 3)


def test_a_sweep_in_a_rehearsal_is_sent_by_the_client(tmp_path: Path) -> None:
    with delay_server(**VIRTUAL) as url:
        [result] = measure(job(url, tmp_path, simulated=True), cell(SWEEP))
    assert (result["status"], result["simulated"], result["metrics"]["sent"]["value"]) == ("done", True, 4)
    assert result["metrics"]["e2e_s"]["value"] == pytest.approx(0.5 + 7 * 0.02)


def test_every_repeat_attempt_and_cell_has_prompts_of_its_own(tmp_path: Path) -> None:
    work = {"kind": "oneshot", "prompt": 100, "output": 4}
    with delay_server(**FAST) as url:
        cells = [cell(work, "a"), cell(work, "b"), cell(work, "c", repeat=2), cell(work, "d", attempt=2)]
        results = by_child(job(url, tmp_path), *cells)
    assert len({r["seeds"]["salt"] for r in results}) == 4


def test_a_cell_measured_again_in_its_run_sends_other_prompts(tmp_path: Path) -> None:
    work = {"kind": "oneshot", "prompt": 100, "output": 4}
    with delay_server(**FAST) as url:
        results = [measure(job(url, tmp_path), cell(work))[0] for _ in range(3)]
    assert len({r["seeds"]["salt"] for r in results}) == 3


def child(**options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "lcplan.workload.child"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


def say(process: subprocess.Popen[str], *messages: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write("".join(json.dumps(m) + "\n" for m in messages))
    process.stdin.flush()


def test_the_child_ends_at_once_when_nobody_listens(tmp_path: Path) -> None:
    with delay_server(ttft_s=60) as url, child() as process:
        assert process.stdin is not None and process.stdout is not None
        say(process, job(url, tmp_path), cell({"kind": "grid", "prompt": 100, "users": 4, "output": 4}))
        process.stdout.readline()  # the warm-up has begun, and never ends
        process.stdin.close()
        assert process.wait(timeout=5) == 1


def test_a_benchmark_tool_dies_with_the_child_however_that_dies(tmp_path: Path) -> None:
    prefix = [sys.executable, str(HERE / "fake_bench.py"), '{"hang": true}']
    for end in ("close", "kill"):
        folder = tmp_path / end
        with delay_server(**FAST) as url, child() as process:
            assert process.stdin is not None and process.stdout is not None
            say(process, job(url, folder), cell(SWEEP, bench=prefix))
            tool = _wait_for_tool(process.pid)
            if end == "close":
                process.stdin.close()
            else:
                os.kill(process.pid, signal.SIGKILL)
            process.wait(timeout=5)
            assert _gone(tool)


def _wait_for_tool(parent: int) -> int:
    import time

    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        if children and b"fake_bench" in Path(f"/proc/{children[0]}/cmdline").read_bytes():
            return int(children[0])
        time.sleep(0.01)
    raise AssertionError("the tool was not started")


def _gone(pid: int) -> bool:
    import time

    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


BAD = [
    ({"finish": True}, "the first message must be the job"),
    ({"job": {"base_url": "http://x"}}, "the job has no 'engine'"),
    ({"job": job("http://x", Path("/tmp"), engine="tgi")["job"]}, "engine kind 'tgi'"),
]


@pytest.mark.parametrize(("message", "sentence"), BAD)
def test_a_bad_job_is_an_error_event(message: dict[str, Any], sentence: str) -> None:
    [event] = by_child(message)
    assert event["event"] == "error" and sentence in event["sentence"]


def test_a_bad_message_between_cells_ends_nothing(tmp_path: Path) -> None:
    with delay_server(**FAST) as url:
        bad, good = by_child(
            job(url, tmp_path), {"measure": {"cell": 3}}, cell({"kind": "oneshot", "prompt": 9, "output": 4})
        )
    assert (bad["event"], good["status"]) == ("error", "done")
