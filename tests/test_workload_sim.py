"""Whole cells against the simulator, with both engines' faces: the shape of the published figures, and its faults."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.sim_kit import DSV4, FLASH, serving
from tests.workload_kit import cell, job, measure

ONESHOT = {"kind": "oneshot", "prompt": 1_000_000, "output": 512}
NEEDLE = {"kind": "needle", "prompt": 200_000, "depths": [0.1, 0.5, 0.9], "output": 512}
RAMP = {"kind": "ramp", "turns": [32768, 65536, 917504, 1_000_000], "output": 128, "conversations": 2}
AGENT = {"kind": "agent", "history": 194_560, "turns": 3, "new": 512, "output": 64, "users": 2}
SWEEP = {"kind": "sweep", "prompt": 8192, "users": 8, "output": 64, "requests": {"per_user": 2, "min": 3}}
GRID = {"kind": "grid", "prompt": 2048, "users": 4, "output": 32}


def run(
    argv: Sequence[str], folder: Path, *works: dict[str, Any], faults: list[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """Measure cells on a simulator of this command line."""
    engine = "vllm" if argv[0] == "vllm" else "sglang"
    folder.mkdir(exist_ok=True)
    with serving(argv, folder, faults=faults) as sim:
        message = job(f"http://127.0.0.1:{sim.port}", folder, engine=engine, served=sim.name, simulated=True)
        return measure(message, *(cell(work) for work in works))


@pytest.mark.parametrize(("argv", "ttft_s", "tpot_ms"), [(FLASH, 58.6, 7.0), ([*DSV4, "--enable-metrics"], 77.0, 9.2)])
def test_all_kinds_on_both_faces(argv: list[str], ttft_s: float, tpot_ms: float, tmp_path: Path) -> None:
    results = run(argv, tmp_path, ONESHOT, NEEDLE, RAMP, AGENT, SWEEP, GRID)
    assert [(r["cell"], r["status"], r["simulated"]) for r in results] == [
        (r["cell"], "done", True) for r in results
    ], results
    oneshot, needle, ramp, agent, sweep, _ = (r["metrics"] for r in results)
    assert oneshot["ttft_s"]["value"] == pytest.approx(ttft_s, rel=0.001)
    assert oneshot["tpot_ms"]["value"] == pytest.approx(tpot_ms, rel=0.001)
    assert (needle["needles_found"]["value"], needle["hit_rate_percent"]["value"]) == (3, 0)
    assert ramp["turn1_hit_rate_percent"]["value"] == 0
    assert ramp["turn4_hit_rate_percent"]["value"] == pytest.approx(91.75, abs=0.1)
    assert ramp["turn4_ttft_s"]["max"] == pytest.approx(2 * ramp["turn4_ttft_s"]["min"], rel=0.15)
    assert ramp["needles_found"]["value"] == 8
    assert agent["ttft_s"]["value"] < agent["first_turn_ttft_s"]["value"] / 20
    assert sweep["sent"]["value"] == sweep["completed"]["value"] == 16


def test_a_rehearsal_gives_the_same_figures_again(tmp_path: Path) -> None:
    figures = [run(FLASH, tmp_path / str(n), GRID, SWEEP) for n in range(2)]
    assert figures[0][0]["metrics"]["ttft_s"] == figures[1][0]["metrics"]["ttft_s"]
    assert figures[0][1]["metrics"]["tpot_ms"] == figures[1][1]["metrics"]["tpot_ms"]


def test_acceptance_of_speculative_decoding(tmp_path: Path) -> None:
    config = json.dumps({"method": "mtp", "num_speculative_tokens": 3})
    [result] = run([*FLASH, "--speculative-config", config], tmp_path, GRID)
    assert 0 < result["metrics"]["acceptance_rate_percent"]["value"] <= 100
    assert 1 < result["metrics"]["acceptance_length_tokens"]["value"] <= 4
    assert result["counters"]["delta"]["accepted_per_position"]


FAULTS = [
    ("prompt-length", {"fault": "wrong_token_counts", "by": 1}, GRID),
    ("cache-hits", {"fault": "cached", "share": 0.5}, GRID),
    ("no-usage", {"fault": "drop_usage"}, GRID),
    ("all-requests-failed", {"fault": "cut_stream", "tokens": 4}, GRID),
    (None, {"fault": "miss_needle", "depths": [0.5]}, NEEDLE),
]


@pytest.mark.parametrize(("reason", "fault", "work"), FAULTS)
def test_faults_are_seen(reason: str | None, fault: dict[str, Any], work: dict[str, Any], tmp_path: Path) -> None:
    [result] = run(FLASH, tmp_path, work, faults=[fault])
    assert result["reason"] == reason, result["sentence"]
    if work is NEEDLE:
        assert [row["needle_ok"] for row in result["rows"]] == [True, False, True]
