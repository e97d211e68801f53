"""Placement: GPUs, CPUs, NUMA nodes, ports and a reason for every launch; what can't be placed is refused with one."""

from __future__ import annotations

import json
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.kit import lcplan

NODE = """\
lcplan: 1
nodes:
  n:
    gpu: {model: H200, memory: 141GiB, count: 8}
    quads:
      a: {gpus: [0, 1, 2, 3], uuids: [GPU-0, GPU-1, GPU-2, GPU-3], numa: [0], cpus: "0-47,96-143", ports: 8000-8099}
      b: {gpus: [4, 5, 6, 7], uuids: [GPU-4, GPU-5, GPU-6, GPU-7], numa: [1], cpus: "48-95,144-191", ports: 8100-8199}
"""
STACKS = """\
lcplan: 1
engines: {vllm: {version: 0.31.0}}
models: {m: {path: /models/tiny, context: 32K}}
stacks:
  one: {model: m, engine: vllm, layout: tp1}
  two: {model: m, engine: vllm, layout: tp2}
  four: {model: m, engine: vllm, layout: tp4}
  eight: {model: m, engine: vllm, layout: tp8}
  pd:
    model: m
    engine: vllm
    layout: pd_2p1d
    roles: {prefill: {layout: tp2, quad: b}, decode: {layout: tp4}, router: {engine: vllm-router}}
workloads:
  w: {kind: oneshot, prompt: 1K, output: 8}
  x: {kind: oneshot, prompt: 2K, output: 8}
"""


def planned(
    folder: Path, experiments: str, *words: str, node: str = NODE, stacks: str = STACKS, out: str = "plan.json"
) -> dict[str, Any]:
    """Return the plan of a campaign."""
    recipes = folder / "recipes"
    recipes.mkdir(parents=True, exist_ok=True)
    (recipes / "node.yaml").write_text(node)
    (recipes / "stacks.yaml").write_text(stacks)
    (recipes / "experiments.yaml").write_text(f"lcplan: 1\n{experiments}")
    ran = lcplan("plan", "recipes", "--runtime", "sim", "-o", out, *words, cwd=folder)
    assert ran.code == 0, ran.err
    made: dict[str, Any] = json.loads((folder / out).read_text())
    made["shown"], made["said"] = ran.out, ran.err
    return made


def refused(folder: Path, experiments: str, *words: str, node: str = NODE, stacks: str = STACKS) -> str:
    """Return what validate says of a campaign that it refuses."""
    recipes = folder / "recipes"
    recipes.mkdir(parents=True, exist_ok=True)
    (recipes / "node.yaml").write_text(node)
    (recipes / "stacks.yaml").write_text(stacks)
    (recipes / "experiments.yaml").write_text(f"lcplan: 1\n{experiments}")
    ran = lcplan("validate", "recipes", *words, cwd=folder)
    assert ran.code == 1 and "Traceback" not in ran.err
    return ran.err


def placements(plan: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return placements by launch."""
    return {one["id"]: one["placement"] for one in plan["launches"] if one["placement"]}


def experiment(*stacks: str, more: str = "") -> str:
    """Return an experiment over stacks."""
    return f"experiments:\n  e: {{stacks: [{', '.join(stacks)}], workloads: [w]{more}}}\n"


def test_a_layout_that_fits_takes_a_quad_and_a_larger_one_the_node(tmp_path: Path) -> None:
    placed = placements(planned(tmp_path, experiment("four", "eight")))
    assert placed["eight"]["quads"] == ["a", "b"] and placed["eight"]["gpus"] == list(range(8))
    assert placed["eight"]["numa"] == [0, 1] and placed["eight"]["cpus"] == "0-47,96-143,48-95,144-191"
    assert "all quads" in placed["eight"]["reason"]
    four = placed["four"]
    assert four["gpus"] == [0, 1, 2, 3] and four["uuids"] == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    assert (four["cpus"], four["numa"], four["port"], four["ports"]) == ("0-47,96-143", [0], 8000, [8000, 8099])
    assert "fits a quad" in four["reason"]


def test_small_stacks_share_a_quad_without_overlap(tmp_path: Path) -> None:
    plan = planned(
        tmp_path, experiment("one", more=", quad: b, repeats: 2") + "  f: {stacks: [two], workloads: [w], quad: b}\n"
    )
    placed = placements(plan)
    assert len(placed) == 3 and all(one["quads"] == ["b"] for one in placed.values())
    starts = {one["id"]: one["start_s"] for one in plan["launches"]}
    together = [one for name, one in placed.items() if starts[name] == 0]
    assert len(together) == 3
    for one, other in combinations(together, 2):
        assert not set(one["gpus"]) & set(other["gpus"])
        assert one["ports"][1] < other["ports"][0] or other["ports"][1] < one["ports"][0]
        assert one["cpus"] != other["cpus"]
    two = placed["two@b"]
    assert two["cpus"] == "48-71,144-167" and two["ports"] == [8100, 8149] and two["uuids"] == ["GPU-4", "GPU-5"]
    argv = {o["launch"]: o["argv"] for o in plan["operations"] if o["op"] == "launch"}
    assert len({argv[name][argv[name].index("--port") + 1] for name in placed if starts[name] == 0}) == 3


def test_a_quad_with_one_port_is_not_shared(tmp_path: Path) -> None:
    node = NODE.replace("8000-8099", "8000").replace("8100-8199", "8100")
    plan = planned(tmp_path, experiment("one", more=", quad: a, repeats: 2"), node=node)
    first, second = sorted(plan["launches"], key=lambda one: one["start_s"])
    assert second["after"] == [first["id"]] and second["placement"]["port"] == 8000


def test_split_layouts_put_prefill_and_decode_on_different_quads(tmp_path: Path) -> None:
    plan = planned(tmp_path, experiment("pd", "one"))
    roles = placements(plan)["pd"]["roles"]
    assert set(roles) == {"prefill-1", "prefill-2", "decode", "router"}
    assert roles["prefill-1"]["gpus"] == [4, 5] and roles["prefill-2"]["gpus"] == [6, 7]
    assert roles["decode"]["gpus"] == [0, 1, 2, 3] and roles["decode"]["quads"] == ["a"]
    assert roles["router"]["gpus"] == [] and roles["router"]["cpus"] == "48-95,144-191"
    ports = [roles[name]["port"] for name in roles]
    assert len(set(ports)) == 4 and placements(plan)["pd"]["port"] == roles["router"]["port"]
    blocks = sorted(roles[name]["ports"] for name in roles)
    assert all(one[1] < other[0] for one, other in pairwise(blocks))
    assert "decode on quad a" in placements(plan)["pd"]["reason"] and "pd/router" in plan["shown"]


def test_several_nodes_are_used(tmp_path: Path) -> None:
    node = NODE + NODE.replace("lcplan: 1\nnodes:\n  n:", "  o:").replace("GPU-", "GPU-o")
    plan = planned(tmp_path, experiment("eight", more=", repeats: 2"), node=node)
    assert {one["node"] for one in placements(plan).values()} == {"n", "o"}
    assert plan["summary"]["makespan_s"] == pytest.approx(plan["summary"]["lower_bound_s"], rel=0.01)


def test_serve_entries_keep_their_gpus_and_ports(tmp_path: Path) -> None:
    serve = "serve: {chat: {stack: four, quad: a, port: 9000}}\n"
    plan = planned(tmp_path, experiment("four", "eight", "two") + serve)
    placed = placements(plan)
    assert placed["four"]["quads"] == ["b"] and placed["two"]["quads"] == ["b"] and "eight" not in placed
    blocked = [c for c in plan["cells"] if c["action"] == "!"]
    assert [c["stack"] for c in blocked] == ["eight"]
    assert "serve entry chat holds n/a" in blocked[0]["reason"] and "preempt: true" in blocked[0]["reason"]
    assert plan["summary"]["serves"]["chat"] == {"node": "n", "quads": ["a"], "gpus": [0, 1, 2, 3], "port": 9000}
    assert "serve entry chat holds n/a" in plan["shown"]


def test_a_port_of_a_serve_entry_is_nobody_elses(tmp_path: Path) -> None:
    serve = "serve: {chat: {stack: two, quad: b, port: 8000}}\n"
    placed = placements(planned(tmp_path, experiment("four") + serve))
    assert placed["four"]["quads"] == ["a"] and placed["four"]["port"] == 8001


def test_small_serve_entries_leave_the_rest_of_their_quad(tmp_path: Path) -> None:
    serve = "serve: {chat: {stack: two, quad: a}, code: {stack: one}}\n"
    plan = planned(tmp_path, experiment("two", "four", more=", quad: a") + serve)
    kept = plan["summary"]["serves"]
    assert kept["chat"]["gpus"] == [0, 1] and kept["code"]["quads"] == ["b"]
    assert placements(plan)["two@a"]["gpus"] == [2, 3]
    assert {c["stack"] for c in plan["cells"] if c["action"] == "!"} == {"four"}


def test_preempt_evicts_and_the_plan_shows_it(tmp_path: Path) -> None:
    serve = "serve: {chat: {stack: four, quad: a}}\n"
    plan = planned(tmp_path, experiment("eight", "four", more=", preempt: true") + serve)
    placed = placements(plan)
    assert placed["eight"]["evicts"] == ["chat"] and "preempts serve chat" in placed["eight"]["reason"]
    assert placed["four"]["quads"] == ["b"] and placed["four"]["evicts"] == []
    assert "eight preempts it" in plan["shown"]


@pytest.mark.parametrize(
    ("experiments", "says"),
    [
        (experiment("four", more=", quad: c"), "experiments.yaml:3:45: error[unresolved]: there is no quad 'c'"),
        (experiment("eight", more=", quad: a"), "experiments.yaml:3:40: error[pin-too-small]: eight@a: layout tp8"),
        (experiment("pd", more=", quad: a"), "experiments.yaml:3:37: error[roles-not-placed]: pd@a: layout pd"),
        (experiment("one") + "serve: {x: {stack: four, quad: a}, y: {stack: one, quad: a}}\n",
         "experiments.yaml:4:52: error[serve-not-placed]: serve entry y finds no free GPUs: serve entry x holds n/a"),
        (experiment("one") + "serve: {x: {stack: one, port: 8000}, y: {stack: one, port: 8000}}\n",
         "error[ports-overlap]: serve entries x and y both have port 8000"),
    ],
)  # fmt: skip
def test_pins_that_cant_be_honoured_are_refused(experiments: str, says: str, tmp_path: Path) -> None:
    assert says in refused(tmp_path, experiments)


@pytest.mark.parametrize(
    ("was", "now", "says"),
    [
        ("gpus: [4, 5, 6, 7]", "gpus: [4, 5, 6, 8]", "node.yaml:7:17: error[gpu-unknown]: quad b holds GPU 8"),
        ("gpus: [4, 5, 6, 7]", "gpus: [3, 4, 5, 6]", "node.yaml:7:17: error[quads-overlap]: GPU 3 is in quads a and b"),
        ('"48-95,144-191"', '"95-48"', "node.yaml:7:85: error[malformed-cpu-list]: quad b"),
        ("8100-8199", "8050-8199", "error[ports-overlap]: the ports of quads a (8000-8099) and b (8050-8199) overlap"),
        ("GPU-4, ", "", "error[uuids-differ]: quad b has 4 GPUs and 3 UUIDs"),
        ("GPU-4, ", "GPU-0, ", "error[quads-overlap]: UUID GPU-0 stands twice, in quads a and b"),
        ("    quads:", "    islands: [[0, 1], [1, 9]]\n    quads:", "node.yaml:5:24: error[islands-overlap]: GPU 1"),
        ("    quads:", "    islands: [[0, 1], [9]]\n    quads:", "error[gpu-unknown]: an island holds GPU 9"),
    ],
)
def test_bad_nodes_are_refused_at_their_quad(was: str, now: str, says: str, tmp_path: Path) -> None:
    assert says in refused(tmp_path, experiment("one"), node=NODE.replace(was, now))


def test_tensor_parallelism_across_islands_names_the_pairs(tmp_path: Path) -> None:
    node = NODE.replace("    quads:", "    islands: [[0, 1], [2, 3], [4, 5], [6, 7]]\n    quads:")
    plan = planned(tmp_path, experiment("two", "four", more=", quad: a"), node=node)
    found = [w for w in plan["warnings"] if w["code"] == "tensor-parallel-crosses"]
    assert len(found) == 1 and "four@a" in found[0]["message"]
    for pair in ("GPU0-GPU2", "GPU0-GPU3", "GPU1-GPU2", "GPU1-GPU3"):
        assert pair in found[0]["message"]
    assert "stacks.yaml" in found[0]["file"] and "tensor-parallel-crosses" in plan["said"]
