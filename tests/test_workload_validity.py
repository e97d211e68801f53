"""Every reason of the closed list is given when it should be, by measuring a server that misbehaves."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lcplan.engine.dialect import Counters
from lcplan.workload.exchange import Record, Request
from lcplan.workload.validity import Evidence, Reason, judge
from tests.workload_kit import cell, delay_server, job, measure

GRID = {"kind": "grid", "prompt": 100, "users": 2, "output": 16}
NEEDLE = {"kind": "needle", "prompt": 2000, "depths": [0.5], "output": 8}
SWEEP = {"kind": "sweep", "prompt": 100, "users": 2, "output": 8, "requests": {"per_user": 1}}
FAST = {"ttft_s": 0.05, "chunk_s": 0.001}

MISBEHAVIOUR: list[tuple[Reason | None, dict[str, Any], dict[str, Any]]] = [
    (None, {}, GRID),
    (Reason.ALL_REQUESTS_FAILED, {"status": 500}, GRID),
    (Reason.ALL_REQUESTS_FAILED, {"cut_after": 3}, GRID),
    (Reason.ALL_REQUESTS_FAILED, {"error_event": True}, GRID),
    (Reason.REQUEST_FAILED, {"fail_every": 2}, GRID),
    (Reason.NO_USAGE, {"usage": False}, GRID),
    (Reason.PROMPT_LENGTH, {"prompt_off": 1}, GRID),
    (Reason.OUTPUT_LENGTH, {"tokens": 15}, GRID),
    (Reason.FOREIGN_TRAFFIC, {"foreign": 5000}, GRID),
    (Reason.CACHE_HITS, {"hits": 0.02}, GRID),
    (None, {"hits": 0.01}, GRID),
    (Reason.TOO_FAST_FOR_COLD, {"metrics": False}, GRID | {"prompt": 10_000}),
    (None, {"metrics": False}, GRID),
    (Reason.TOO_FAST_FOR_COLD, {"silent_counters": True}, GRID | {"prompt": 10_000}),
    (Reason.NO_TOKENIZE, {"tokenize": False}, NEEDLE),
    (Reason.BAD_WORKLOAD, {}, GRID | {"users": 0}),
    (Reason.BAD_WORKLOAD, {}, NEEDLE | {"prompt": 20}),
    (Reason.BAD_WORKLOAD, {}, NEEDLE | {"depths": [1.5]}),
    (Reason.BAD_WORKLOAD, {}, {"kind": "dance", "prompt": 10}),
    (Reason.BENCH_MISSING, {}, SWEEP),
]


@pytest.mark.parametrize(("reason", "behaviour", "workload"), MISBEHAVIOUR)
def test_misbehaviour_is_named(
    reason: Reason | None, behaviour: dict[str, Any], workload: dict[str, Any], tmp_path: Path
) -> None:
    with delay_server(**FAST | behaviour) as url:
        [result] = measure(job(url, tmp_path), cell(workload))
    assert (result["reason"], result["status"]) == (reason, reason.status if reason else "done"), result["sentence"]
    assert result["sentence"].startswith(reason.sentence if reason else "")
    assert all(row["reason"] == reason for row in result["rows"])


def test_a_server_that_is_gone_is_named(tmp_path: Path) -> None:
    with delay_server() as url:
        pass
    results = measure(job(url, tmp_path), *(cell(w) for w in (GRID, NEEDLE)))
    assert [r["reason"] for r in results] == [Reason.SERVER_GONE] * 2


BENCH = [
    (Reason.BENCH_MISSING, ["no-such-command-anywhere"]),
    (Reason.BENCH_FAILED, [sys.executable, "-c", "raise SystemExit(1)"]),
    (
        Reason.BENCH_FAILED,
        [sys.executable, "-c", "import sys; open(sys.argv[-5] + '/' + sys.argv[-4], 'w').write('[]')"],
    ),
]


@pytest.mark.parametrize(("reason", "prefix"), BENCH)
def test_a_benchmark_tool_that_fails_is_named(reason: Reason, prefix: list[str], tmp_path: Path) -> None:
    with delay_server(**FAST) as url:
        [result] = measure(job(url, tmp_path), cell(SWEEP, bench=prefix))
    assert (result["reason"], result["status"]) == (reason, "failed")


def record(**facts: Any) -> Record:
    made = Record(Request(0, 0, 1000, 8, b"", facts.pop("new", 1000)), 0, 0, 100_000_000, 200_000_000)
    made.prompt_tokens, made.output_tokens = 1000, 8
    for name, value in facts.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("lag_ms", "reason"),
    [(None, None), (0.5, None), (5.0, None), (5.5, Reason.CLIENT_BOUND), (50.0, Reason.CLIENT_BOUND)],
)
def test_a_late_client_is_named(lag_ms: float | None, reason: Reason | None) -> None:
    assert judge(Evidence([record()], Counters(), lag_ms=lag_ms)).reason == reason


def test_what_is_sent_again_may_hit() -> None:
    again = record(new=100)
    assert judge(Evidence([again], Counters(queried=1000, hit=900))).reason is None
    assert judge(Evidence([again], Counters(queried=1000, hit=902))).reason == Reason.CACHE_HITS


def test_lengths_of_a_benchmark_tool_may_be_a_little_off() -> None:
    for off, reason in ((8, None), (-8, None), (9, Reason.PROMPT_LENGTH)):
        found = judge(Evidence([record(prompt_tokens=1000 + off)], Counters(), loose=True))
        assert found.reason == reason


def test_a_preempted_prompt_is_counted_twice_by_right() -> None:
    assert judge(Evidence([record()], Counters(queried=9000, hit=0, preemptions=1))).reason is None
    assert judge(Evidence([record()], Counters(queried=9000, hit=0, preemptions=0))).reason == Reason.FOREIGN_TRAFFIC


def test_every_reason_has_its_sentence_and_status() -> None:
    assert len({reason.sentence for reason in Reason}) == len(Reason)
    assert {reason.status for reason in Reason} == {"failed", "invalid"}
    assert json.dumps(list(Reason))
