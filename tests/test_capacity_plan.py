"""Capacity in plans and applies, through the command line: marked, blocked, required, remembered, gated."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.kit import REPO, campaign, lcplan

SHAPES = REPO / "tests" / "cases" / "model_shapes"


def recipe(port: int, *, stack: str = "", model: str = "", experiment: str = "", engine: str = "vllm") -> str:
    """Return a campaign with 2 and 8 users of 16K on one rank, with what is added to its parts."""
    version, cap = {"vllm": ("0.31.0", "max-num-seqs"), "sglang": ("0.5.21", "max-running-requests")}[engine]
    return f"""\
lcplan: 1
engines: {{{engine}: {{version: {version}}}}}
models: {{m: {{path: /models/tiny, context: 32K{model}}}}}
nodes:
  n:
    gpu: {{model: H200, memory: 141GiB, count: 4}}
    quads: {{a: {{gpus: [0, 1, 2, 3], ports: {port}-{port + 9}}}}}
stacks:
  s: {{model: m, engine: {engine}, layout: tp1, context: 32K, args: {{{cap}: 64}}{stack}}}
workloads:
  w: {{kind: oneshot, prompt: 1K, output: 8}}
  g: {{kind: grid, output: 8, points: [{{prompt: 16K, users: 2}}, {{prompt: 16K, users: 8}}]}}
experiments:
  first: {{stacks: [s], workloads: [w, g]{experiment}}}
"""


DECLARED = ", capacity: {pool_tokens: 64K}"


def plan(folder: Path, *words: str) -> dict[str, Any]:
    ran = lcplan("plan", "recipes", "--runtime", "sim", "-o", "p.json", "--json", *words, cwd=folder)
    assert ran.code == 0, ran.err
    return dict(json.loads(ran.out))


def cells(plan: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {str(c["cell"]).removeprefix("g.prompt=16384."): c for c in plan["cells"]}


def manifests(folder: Path) -> list[dict[str, Any]]:
    found = sorted((folder / "state" / "runs").glob("*/manifest.json"), key=lambda path: path.stat().st_mtime_ns)
    return [json.loads(path.read_text())["predicate"] for path in found]


def test_an_unknown_pool_is_known_after_launch(tmp_path: Path, port: int) -> None:
    campaign(tmp_path / "recipes", recipe(port))
    found = cells(plan(tmp_path))["users=8"]
    assert found["limited"] is None
    assert (found["fits"]["pool_source"], found["fits"]["fits"], found["fits"]["effective"]) == ("unknown", None, 64)
    assert "known after launch" in lcplan("plan", "recipes", cwd=tmp_path).out


def test_more_users_than_fit_are_marked(tmp_path: Path, port: int) -> None:
    campaign(tmp_path / "recipes", recipe(port, stack=DECLARED))
    found = cells(plan(tmp_path))
    assert {name: c["limited"] for name, c in found.items()} == {"w": False, "users=2": False, "users=8": True}
    fits = found["users=8"]["fits"]
    assert (fits["fits"], fits["cap"], fits["effective"], fits["limit"]) == (3, 64, 3, "pool")
    assert (fits["pool_source"], fits["cap_source"]) == ("declared", "--max-num-seqs")
    assert {c["action"] for c in found.values()} == {"+"}
    for words in ((), ("--format", "md")):
        shown = lcplan("plan", "recipes", *words, cwd=tmp_path).out
        assert "1 capacity-limited" in shown and "capacity-limited at 8" in shown
        assert "Capacity (1 cells have more users than fit)" in shown


def test_or_blocked(tmp_path: Path, port: int) -> None:
    campaign(tmp_path / "recipes", recipe(port, stack=DECLARED, experiment=", on_capacity: block"))
    found = plan(tmp_path)
    assert {name: c["action"] for name, c in cells(found).items()} == {"w": "+", "users=2": "+", "users=8": "!"}
    reason = cells(found)["users=8"]["reason"]
    assert reason == "blocked: capacity: 8 users, but only 3 fit (pool of 65,536 tokens, declared)"
    assert not any(o["op"] == "measure" and "users=8" in o["cell"] for o in found["operations"])
    assert found["summary"]["actions"]["!"] == 1
    shown = lcplan("plan", "recipes", cwd=tmp_path).out
    assert "! blocked 1 cells on s: blocked: capacity: 8 users" in shown
    assert lcplan("apply", "p.json", cwd=tmp_path).code == 0
    again = lcplan("plan", "recipes", "--runtime", "sim", cwd=tmp_path).out
    # The server held more than was declared, and what was logged counts more.
    assert "measure 1 cells on s" in again


@pytest.mark.parametrize(("sequences", "action"), [(4, "+"), (5, "!")])
def test_what_an_experiment_requires(tmp_path: Path, port: int, sequences: int, action: str) -> None:
    requires = f", requires: {{sequences: {sequences}, at: 16K}}"
    campaign(tmp_path / "recipes", recipe(port, stack=DECLARED, experiment=requires))
    found = plan(tmp_path)
    assert {c["action"] for c in found["cells"]} == {action}
    if action == "!":
        assert "first requires 5 sequences of 16,384 tokens, only 4 fit" in found["cells"][0]["reason"]
        assert found["operations"] == []
        shown = lcplan("plan", "recipes", cwd=tmp_path).out
        assert shown.startswith("No changes") and "requires 5 sequences" in shown


def test_cells_of_an_experiment_without_wishes_are_measured(tmp_path: Path, port: int) -> None:
    strict = recipe(port, stack=DECLARED, experiment=", on_capacity: block, requires: {sequences: 5, at: 16K}")
    campaign(tmp_path / "recipes", strict + "  second: {stacks: [s], workloads: [w, g]}\n")
    assert {c["action"] for c in plan(tmp_path)["cells"]} == {"+"}


def test_a_pool_is_predicted_from_the_config(tmp_path: Path, port: int) -> None:
    config = f", config: {SHAPES / 'llama-3.1-8b.json'}"
    campaign(tmp_path / "recipes", recipe(port, model=config))
    found = plan(tmp_path)
    fits = cells(found)["users=8"]["fits"]
    assert fits["pool_source"] == "predicted"
    assert 800_000 < fits["pool_tokens"] < 1_000_000
    assert fits["fits"] == fits["pool_tokens"] // 16_400 or fits["by"] == "law"
    predicted = found["launches"][0]["capacity"]["predicted"]
    assert predicted["interval"][0] <= predicted["pool_tokens"] <= predicted["interval"][1]
    assert predicted["weights_gib"] > 10


def test_what_was_logged_counts_in_the_next_plan(tmp_path: Path, port: int) -> None:
    campaign(tmp_path / "recipes", recipe(port, stack=DECLARED))
    plan(tmp_path, "--target", "workload=w")
    assert lcplan("apply", "p.json", cwd=tmp_path).code == 0
    found = plan(tmp_path)
    [run] = manifests(tmp_path)
    logged = run["capacity"]["logged"]["pool_tokens"]
    fits = cells(found)["users=8"]["fits"]
    assert (fits["pool_source"], fits["pool_tokens"]) == ("history", logged)
    assert cells(found)["users=8"]["limited"] is False
    assert cells(found)["w"]["fits"] is None  # recorded: nothing is to be known
    assert found["launches"][0]["capacity"]["history"]["runs"] == [run["run"]]
    # A rehearsal says nothing of a real server.
    real = json.loads(lcplan("plan", "recipes", "--json", cwd=tmp_path).out)
    assert cells(real)["users=8"]["fits"]["pool_source"] == "declared"
    # A simulated server loads nothing: its start says nothing of the time that an engine takes.
    assert found["launches"][0]["load_s"] == plan(tmp_path, "--state", "elsewhere")["launches"][0]["load_s"]


def test_other_settings_mark_but_do_not_block(tmp_path: Path, port: int) -> None:
    text = recipe(port, experiment=", on_capacity: block")
    campaign(tmp_path / "recipes", text)
    plan(tmp_path, "--target", "workload=w")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LCPLAN_SIM_FAULTS", json.dumps([{"match": "*", "fault": "pool", "tokens": 65_536}]))
        assert lcplan("apply", "p.json", cwd=tmp_path).code == 0
    same = cells(plan(tmp_path))["users=8"]
    assert (same["action"], same["limited"]) == ("!", True)
    assert cells(plan(tmp_path, "--replace", "users=8"))["users=8"]["action"] == "+"
    campaign(tmp_path / "recipes", text.replace("max-num-seqs: 64", "max-num-seqs: 32"))
    other = cells(plan(tmp_path))["users=8"]
    assert (other["action"], other["limited"], other["fits"]["pool_source"]) == ("+", True, "history")


def test_a_pool_smaller_than_before_is_gated_and_told(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign(tmp_path / "recipes", recipe(port, experiment=", on_capacity: block"))
    plan(tmp_path, "--target", "workload=w")
    assert lcplan("apply", "p.json", cwd=tmp_path).code == 0
    assert cells(plan(tmp_path))["users=8"]["action"] == "+"
    monkeypatch.setenv("LCPLAN_SIM_FAULTS", json.dumps([{"match": "*", "fault": "pool", "tokens": 65_536}]))
    ran = lcplan("apply", "p.json", "--json", cwd=tmp_path)
    assert ran.code == 0, ran.out
    events = [json.loads(line) for line in ran.out.splitlines()]
    [told] = [e for e in events if e["event"] == "warning"]
    assert told["code"] == "pool-below-history" and "65,536 tokens" in told["sentence"]
    run = manifests(tmp_path)[-1]
    assert told["sentence"] in run["capacity"]["logged"]["warnings"]
    assert run["capacity"]["history"]["pools"] == [manifests(tmp_path)[0]["capacity"]["logged"]["pool_tokens"]]
    fates = {c["cell"].rpartition(".")[2]: (c["status"], c["reason"]) for c in run["cells"]}
    assert fates == {"users=2": ("done", None), "users=8": ("blocked", "capacity")}
    assert lcplan("audit", "verify", cwd=tmp_path).code == 0


def test_a_ready_server_that_cannot_hold_its_context_has_failed(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign(tmp_path / "recipes", recipe(port, engine="sglang", stack=", args: {enable-metrics: true}").replace(
        "args: {max-running-requests: 64}, ", ""))  # fmt: skip
    plan(tmp_path)
    monkeypatch.setenv("LCPLAN_SIM_FAULTS", json.dumps([{"match": "*", "fault": "pool", "tokens": 20_000}]))
    ran = lcplan("apply", "p.json", "--json", cwd=tmp_path)
    assert ran.code == 1
    [failed] = [e for e in map(json.loads, ran.out.splitlines()) if e["event"] == "failed"]
    assert failed["class"] == "kv_too_small" and "holds no request of the context of 32,768" in failed["sentence"]
    monkeypatch.delenv("LCPLAN_SIM_FAULTS")
    again = plan(tmp_path)
    # A start that failed is no history.
    assert {c["action"] for c in again["cells"]} == {"~"}
    assert cells(again)["users=8"]["fits"]["pool_source"] == "unknown"


def test_a_law_is_kept_and_used(tmp_path: Path, port: int) -> None:
    campaign(tmp_path / "recipes", recipe(port).replace("prompt: 1K, output: 8", "prompt: 24K, output: 400"))
    plan(tmp_path, "--target", "workload=w")
    lcplan("apply", "p.json", cwd=tmp_path)
    [run] = manifests(tmp_path)
    law = run["capacity"]["law"]
    assert law["max_model_len"] == 32768 and law["b"] == pytest.approx(1, rel=0.05)
    figures = cells(plan(tmp_path))["users=8"]["fits"]["figures"]
    assert set(figures) == {"formula", "concurrency", "law"}


def test_queued_points_are_marked(tmp_path: Path, port: int) -> None:
    campaign(tmp_path / "recipes", recipe(port).replace("max-num-seqs: 64", "max-num-seqs: 2"))
    plan(tmp_path, "--target", "users=8")
    assert lcplan("apply", "p.json", cwd=tmp_path).code == 0
    [cell] = manifests(tmp_path)[0]["cells"]
    assert cell["queued"] > 0 and cell["capacity"]["limited"] is True
    run = manifests(tmp_path)[0]["run"]
    shown = lcplan("runs", "show", run, cwd=tmp_path).out
    assert f"queued {cell['queued']}" in shown and "capacity-limited, 2 fit" in shown
    assert json.loads(lcplan("runs", "show", run, "--json", cwd=tmp_path).out)["cells"][0]["queued"] == cell["queued"]


EXTRA = """\
lcplan: 1
workloads: {probe: {kind: oneshot, prompt: 1K, output: 8}}
experiments: {probe: {stacks: [qwen36_35b, glm53, minimax_m3], workloads: [probe]}}
"""


def test_the_reference_campaign_fits_what_it_is_known_to_fit(tmp_path: Path, port: int) -> None:
    shutil.copytree(REPO / "recipes", tmp_path / "recipes")
    node = tmp_path / "recipes" / "node.yaml"
    ports = (f"{port}-{port + 9}", f"{port + 10}-{port + 19}")
    node.write_text(node.read_text().replace("8000-8099", ports[0]).replace("8100-8199", ports[1]))
    campaign(tmp_path / "recipes", EXTRA, "probe.yaml")
    plan(tmp_path, "--target", "experiment=probe")
    ran = lcplan("apply", "p.json", cwd=tmp_path)
    assert ran.code == 0, ran.out
    tables = json.loads(lcplan("capacity", "--json", cwd=tmp_path).out)
    stacks = {one["stack"]: one for one in tables["stacks"]}
    known = {"qwen36_35b": (40, 4096), "glm53": (5, 8), "minimax_m3": (3, 16)}
    assert {name: (stacks[name]["at"]["1048576"], stacks[name]["cap"]) for name in known} == known
    assert stacks["qwen36_35b"]["simulated"] is True and stacks["qwen36_35b"]["pool_tokens"] == 11_304_766
    assert stacks["qwen38_27b"]["at"]["1048576"] is None and stacks["glm53_flash"]["at"]["1048576"] == "unknown"
    shown = lcplan("capacity", cwd=tmp_path).out
    assert "history (simulated)" in shown and "11,304,766 x 4" in shown
    text = lcplan("plan", "recipes", "--runtime", "sim", cwd=tmp_path).out
    assert "history: 11,304,766 x 4" in text


def test_tables_need_neither_models_nor_runs(tmp_path: Path) -> None:
    ran = lcplan("capacity", str(REPO / "recipes"), "--json", cwd=tmp_path)
    assert ran.code == 0
    assert {one["pool_source"] for one in json.loads(ran.out)["stacks"]} == {"unknown"}
    assert list(tmp_path.iterdir()) == []
    bad = lcplan("capacity", "nowhere", cwd=tmp_path)
    assert bad.code == 1 and "nowhere" in bad.err
