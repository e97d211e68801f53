"""What recipes mean: overrides, repeats, layouts and texts, read off the plan that they give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lcplan.recipe.fmt import formatted
from tests.kit import lcplan

BASE = """\
lcplan: 1
engines: {vllm: {version: 0.31.0}}
models: {m: {path: /models/m, context: 32K}}
nodes: {h: {gpu: {model: H200, memory: 141GiB, count: 4}, quads: {a: {gpus: [0, 1, 2, 3], ports: 8000-8099}}}}
"""
ONE = "workloads: {w: {kind: oneshot, prompt: 1K, output: 16}}\n"
STACK = "stacks: {s: {model: m, engine: vllm, layout: tp4}}\n"


def planned(folder: Path, text: str) -> dict[str, Any]:
    (folder / "r.yaml").write_text(BASE + text)
    ran = lcplan("plan", str(folder / "r.yaml"), "-o", str(folder / "p.json"), "--state", str(folder / "state"))
    assert ran.code == 0, ran.err
    plan: dict[str, Any] = json.loads((folder / "p.json").read_text())
    return plan


def names(plan: dict[str, Any]) -> list[str]:
    return [cell["cell"] for cell in plan["cells"]]


def env(plan: dict[str, Any]) -> dict[str, Any]:
    return next(op["env"] for op in plan["operations"] if op.get("argv"))


def test_an_override_replaces_an_axis_by_one_value(tmp_path: Path) -> None:
    axes = "axes: {prompt: [1K, 2K], users: [1, 2]}"
    sweep = f"workloads: {{w: {{kind: sweep, {axes}, output: 16, requests: {{per_user: 1}}}}}}\n"
    plan = planned(tmp_path, STACK + sweep + "experiments: {e: {stacks: [s], workloads: [{use: w, users: 4}]}}\n")
    assert names(plan) == ["w.prompt=1024", "w.prompt=2048"]
    assert {cell["users"] for cell in plan["cells"]} == {4}


def test_an_override_replaces_one_value_by_an_axis(tmp_path: Path) -> None:
    plan = planned(
        tmp_path, STACK + ONE + "experiments: {e: {stacks: [s], workloads: [{use: w, axes: {prompt: [2K]}}]}}\n"
    )
    assert names(plan) == ["w.prompt=2048"]


def test_output_may_be_an_axis(tmp_path: Path) -> None:
    plan = planned(tmp_path, STACK + "workloads: {w: {kind: oneshot, prompt: 1K, axes: {output: [1, 16]}}}\n"
                   "experiments: {e: {stacks: [s], workloads: [w]}}\n")  # fmt: skip
    assert names(plan) == ["w.output=1", "w.output=16"]


def test_repeats_on_one_server_are_other_cells_than_repeats_on_servers_of_their_own(tmp_path: Path) -> None:
    within = "  e: {stacks: [s], workloads: [w], repeats: {n: 2, within: launch}}\n"
    own = "  f: {stacks: [s], workloads: [w], repeats: 2}\n"
    plan = planned(tmp_path, STACK + ONE + "experiments:\n" + within + own)
    assert [(cell["cell"], cell["launch"], cell["experiments"]) for cell in plan["cells"]] == [
        ("w", "s", ["e", "f"]), ("w.r2", "s", ["e"]), ("w.r2", "s.r2", ["f"]),
    ]  # fmt: skip


@pytest.mark.parametrize("layout", ["{tp: 4, ep: 4}", "tp4ep4", "ep4tp4", "tep4dp1"])
def test_one_layout_is_one_launch_however_it_is_written(layout: str, tmp_path: Path) -> None:
    stacks = (
        f"stacks: {{s: {{model: m, engine: vllm, layout: tep4}}, t: {{model: m, engine: vllm, layout: {layout}}}}}\n"
    )
    plan = planned(tmp_path, stacks + ONE + "experiments: {e: {stacks: [s, t], workloads: [w]}}\n")
    assert len(plan["launches"]) == len(plan["cells"]) == 1


@pytest.mark.parametrize("text", ["010", "0x1F", "1_000", "0.90", "1e3", "-0"])
def test_environment_gets_numbers_as_they_are_written(text: str, tmp_path: Path) -> None:
    stack = f"stacks: {{s: {{model: m, engine: vllm, layout: tp4, env: {{A: {text}}}}}}}\n"
    plan = planned(tmp_path, stack + ONE + "experiments: {e: {stacks: [s], workloads: [w]}}\n")
    assert env(plan)["A"] == text


@pytest.mark.parametrize("text", ["[s,  # one\n    t]  # two\n", "[\n  s,\n  # the second\n  t]\n"])
def test_formatting_loses_no_comment_inside_brackets(text: str) -> None:
    whole = f"lcplan: 1\nexperiments:\n  e:\n   stacks:   {text}   workloads:   [w]\n"
    made = formatted(whole.encode(), "r.yaml")
    assert made.count("#") == whole.count("#")
    assert formatted(made.encode(), "r.yaml") == made


def test_hidden_files_are_no_recipes(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / ".#r.yaml").write_text("half an edit: [")
    (tmp_path / "recipes" / "r.yaml").write_text(BASE + STACK + ONE)
    assert lcplan("validate", str(tmp_path / "recipes")).code == 0
