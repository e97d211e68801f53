"""The records of real engines in examples/h200: whole, read alike today, predicted within a few tenths of a percent."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lcplan.base.layout import parse_layout
from lcplan.capacity.predict import Launch, predict
from lcplan.engine import dialect
from lcplan.engine.logs import parse_log
from lcplan.node.combine import read_topology
from lcplan.node.nodefile import node_recipe
from lcplan.node.quads import propose_quads
from tests.kit import REPO, lcplan

HOME = REPO / "examples" / "h200"
STATE = HOME / "state"
CASES = json.loads((REPO / "tests" / "cases" / "h200_campaign.json").read_text())["cases"]
MODELS = REPO / "tests" / "real" / "vllm-0.25.1-h200" / "models"
MANIFESTS = {path.parent.name: json.loads(path.read_text())["predicate"] for path in STATE.glob("runs/*/manifest.json")}
LOGGED = sorted(run for run, body in MANIFESTS.items() if body["capacity"]["logged"])
KILLED = "llama8__tp1_b__128k__vllm__kv-bf16__1129-200418"
RESUMED = "llama8__tp1_b__128k__vllm__kv-bf16__1129-200652"
VICTIM = "llama8__tp1_a__128k__vllm__victim__1129-200940"


@pytest.fixture
def state(tmp_path: Path) -> str:
    """The records in a place of their own: reading commands may write an index beside them."""
    shutil.copytree(STATE, tmp_path / "state")
    return str(tmp_path / "state")


def test_the_records_are_whole(state: str) -> None:
    assert "all is as it was sealed" in lcplan("audit", "verify", "--state", state).out


def test_nothing_is_simulated_and_nothing_is_published(state: str) -> None:
    assert len(MANIFESTS) == len(CASES) == 13
    assert not any(body["simulated"] for body in MANIFESTS.values())
    listed = json.loads(lcplan("runs", "list", "--json", "--state", state).out)
    assert {run["standing"] for run in listed} == {"provisional", "failed", "interrupted", "not_run"}


def test_a_number_leads_to_its_command(state: str) -> None:
    said = lcplan("audit", "why", f"{RESUMED}/oneshot.prompt=130816#ttft_s", "--state", state).out
    assert "10.44526362 s" in said
    assert "exec taskset" in said and "vllm serve /h200/models/llama8" in said
    assert "needle found 0 of 3" in said


@pytest.mark.parametrize("case", CASES, ids=[case["run"] for case in CASES])
def test_logs(case: dict[str, Any]) -> None:
    facts = parse_log(STATE / "runs" / case["run"] / "server.log")
    for key, value in case["expected"].items():
        found = getattr(facts, key)
        if key == "choices":
            assert {name: found.get(name) for name in value} == value
        else:
            assert (list(found) if isinstance(value, list) else found) == value, key


@pytest.mark.parametrize("run", LOGGED)
def test_predictions(run: str) -> None:
    body = MANIFESTS[run]
    logged, before = body["capacity"]["logged"]["pool_tokens"], body["capacity"]["predicted"]
    assert before["pool_tokens"] == pytest.approx(logged, rel=0.004)
    assert before["interval"][0] <= logged <= before["interval"][1]
    config = json.loads((MODELS / f"{body['model']['name']}.config.json").read_text())
    engine, flags = body["engine"], body["behaviour"]["args"]
    today = predict(config, Launch(engine["kind"], engine["version"], "H200", parse_layout(body["layout"]), flags))
    assert today.pool_tokens == pytest.approx(logged, rel=0.01)


@pytest.mark.parametrize("run", LOGGED)
def test_pages_and_logs_agree(run: str) -> None:
    pages = sorted((STATE / "runs" / run / "metrics").glob("*.txt"))
    kind, logged = MANIFESTS[run]["engine"]["kind"], MANIFESTS[run]["capacity"]["logged"]
    for page in pages:
        found = dialect.capacity(page.read_text(), kind)
        assert found is not None
        assert (found.pool_tokens, found.engines) == (logged["pool_tokens"], logged["engines"])


def test_usage_is_finer_than_sglang_says() -> None:
    [run] = [run for run in LOGGED if run.startswith("sg_llama8__tp1_b")]
    page = (STATE / "runs" / run / "metrics" / "ramp.after.txt").read_text()
    exact = 130943 / 879569
    assert dialect.gauges(page, "sglang").kv_usage == pytest.approx(exact, rel=1e-9)
    assert dialect.counters(page, "sglang").kv_usage == pytest.approx(exact, rel=1e-9)


def test_a_resumed_apply_repeated_nothing() -> None:
    fates = {run: {c["cell"]: c["status"] for c in MANIFESTS[run]["cells"]} for run in (KILLED, RESUMED)}
    finished = {cell for cell, status in fates[KILLED].items() if status == "done"}
    assert finished == {"needle", "oneshot.prompt=32768"}
    assert fates[KILLED]["oneshot.prompt=130816"] == "interrupted"
    assert set(fates[RESUMED]) == set(fates[KILLED]) - finished
    assert set(fates[RESUMED].values()) == {"done"}


def test_a_killed_engine_core_is_recorded_as_such() -> None:
    first, second = MANIFESTS[VICTIM]["cells"]
    assert (first["status"], second["status"]) == ("failed", "not_run")
    assert "EngineCore encountered an issue" in first["sentence"]
    assert second["reason"] == "worker_died"


def test_hit_rates_of_a_ramp() -> None:
    turns = [16384, 32768, 65536, 98304, 130816]
    for run in (RESUMED, *(r for r in LOGGED if r.startswith("sg_llama8__tp1_b"))):
        [ramp] = [c["metrics"] for c in MANIFESTS[run]["cells"] if c["cell"] == "ramp"]
        for turn, (before, now) in enumerate(zip([0, *turns], turns, strict=False), 1):
            assert ramp[f"turn{turn}_hit_rate_percent"]["value"] == pytest.approx(100 * before / now, abs=0.1)


def test_a_plan_anywhere_knows_the_records(state: str, tmp_path: Path) -> None:
    made = tmp_path / "plan.json"
    lcplan("plan", "examples/h200/recipes", "--state", state, "-o", str(made), cwd=REPO)
    actions = [cell["action"] for cell in json.loads(made.read_text())["cells"]]
    assert [actions.count(action) for action in "=~+"] == [34, 4, 0]


def test_the_detected_machine() -> None:
    texts = [(name, (HOME / "machine" / name).read_text()) for name in ("topo.txt", "smi.csv")]
    topology = read_topology(texts)
    assert node_recipe(topology, propose_quads(topology), "h200") == (HOME / "machine" / "detected.yaml").read_text()
