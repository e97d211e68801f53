"""What a plan is made for: another machine, a time budget, history; and what never makes a record stale."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lcplan.plan.build import build
from lcplan.plan.model import Plan, Recorded, Snapshot
from lcplan.plan.wanted import Wanted
from lcplan.recipe.load import load
from tests.kit import lcplan
from tests.test_place import NODE, STACKS, experiment, placements, planned

OTHER = """\
lcplan: 1
nodes:
  old:
    gpu: {model: A100, memory: 80GiB, count: 4}
    quads:
      z: {gpus: [0, 1, 2, 3], ports: 7000-7099}
"""
MATRIX = """\
        GPU0    GPU1    GPU2    GPU3    CPU Affinity    NUMA Affinity
GPU0     X      NV12    SYS     SYS     0-15            0
GPU1    NV12     X      SYS     SYS     0-15            0
GPU2    SYS     SYS      X      NV12    16-31           1
GPU3    SYS     SYS     NV12     X      16-31           1
"""


def write(folder: Path, experiments: str, node: str = NODE) -> Path:
    """Write a campaign and return its folder of recipes."""
    recipes = folder / "recipes"
    recipes.mkdir(parents=True, exist_ok=True)
    for name, text in (("node", node), ("stacks", STACKS), ("experiments", f"lcplan: 1\n{experiments}")):
        (recipes / f"{name}.yaml").write_text(text)
    return recipes


def made(folder: Path, recorded: Snapshot, **wanted: Any) -> Plan:
    """Return the plan of the campaign in a folder against a snapshot."""
    return build(load([folder]), recorded, Wanted("sim", **wanted))[0]


def test_another_node_is_planned_and_refused_by_apply(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(OTHER)
    plan = planned(tmp_path, experiment("four", "eight"), "--node", "other.yaml")
    assert placements(plan)["four"]["node"] == "old" and placements(plan)["four"]["port"] == 7000
    assert "old, 4 x A100" in plan["summary"]["what_if"] and "what-if" in plan["shown"]
    blocked = [c for c in plan["cells"] if c["action"] == "!"]
    assert [c["stack"] for c in blocked] == ["eight"] and "needs 8 GPUs, the largest node has 4" in blocked[0]["reason"]
    ran = lcplan("apply", "plan.json", "--yes", cwd=tmp_path)
    assert ran.code == 1 and "stale-plan" in ran.err and "declared node changed" in ran.err


def test_what_does_not_fit_elsewhere_is_said_and_the_rest_is_planned(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(OTHER)
    experiments = experiment("four", more=", quad: a") + "  f: {stacks: [two], workloads: [w]}\n"
    plan = planned(tmp_path, experiments + "serve: {chat: {stack: four, quad: b}}\n", "--node", "other.yaml")
    assert list(placements(plan)) == ["two"]
    assert [c["reason"] for c in plan["cells"] if c["action"] == "!"] == ["blocked: four@a: there is no quad a"]
    assert "warning[pin-unknown]: serve entry chat: there is no quad b" in plan["said"]


def test_a_what_if_replaces_no_plan_and_counts_nothing_as_recorded(tmp_path: Path) -> None:
    write(tmp_path, experiment("four"))
    (tmp_path / "other.yaml").write_text(OTHER)
    assert lcplan("plan", "recipes", "--runtime", "sim", cwd=tmp_path).code == 0
    before = (tmp_path / "plans/plan.json").read_bytes()
    assert lcplan("plan", "recipes", "--runtime", "sim", "--node", "other.yaml", cwd=tmp_path).code == 0
    assert (tmp_path / "plans/plan.json").read_bytes() == before


def test_the_campaigns_own_node_is_no_what_if(tmp_path: Path) -> None:
    plan = planned(tmp_path, experiment("four"), "--node", "recipes/node.yaml")
    assert "what_if" not in plan["summary"]


def test_a_table_of_a_machine_takes_the_place_of_the_node(tmp_path: Path) -> None:
    (tmp_path / "topo.txt").write_text(MATRIX)
    plan = planned(tmp_path, experiment("two", "four"), "--from", "topo.txt")
    placed = placements(plan)
    assert placed["four"]["node"] == "topo" and "4 x H200" in plan["summary"]["what_if"]
    found = [w["message"] for w in plan["warnings"] if w["code"] == "tensor-parallel-crosses"]
    assert len(found) == 1 and "GPU0-GPU2" in found[0] and "SYS" in found[0]


def test_bad_machines_are_refused(tmp_path: Path) -> None:
    write(tmp_path, experiment("four"))
    (tmp_path / "empty.txt").write_text("nothing to see\n")
    (tmp_path / "stacks.yaml").write_text("lcplan: 1\nmodels: {m: {path: /m}}\n")
    for words in (
        "--from empty.txt", "--from absent.txt", "--node stacks.yaml", "--node no.yaml",
        "--node stacks.yaml --from empty.txt", "--budget soon", "--budget 0h",
    ):  # fmt: skip
        ran = lcplan("plan", "recipes", *words.split(), cwd=tmp_path)
        assert ran.code == 1 and ran.err and "Traceback" not in ran.err, words


def test_a_budget_takes_cells_by_priority_and_says_what_is_left_out(tmp_path: Path) -> None:
    experiments = (
        "experiments:\n  low: {stacks: [eight], workloads: [w, x]}\n"
        "  high: {stacks: [four], workloads: [w, x], priority: 3, repeats: 2}\n"
    )
    plan = planned(tmp_path, experiments, "--budget", "300s")
    assert {c["stack"] for c in plan["cells"]} == {"four"} and plan["summary"]["makespan_s"] <= 300
    left = plan["summary"]["left_out"]
    assert [(one["launch"], one["experiments"], len(one["names"])) for one in left] == [("eight", ["low"], 2)]
    assert "left out by the budget: 2 cells on eight of low" in plan["shown"]
    assert plan["partial"] == {"budget": ["300s"]} and plan["summary"]["actions"]["!"] == 0
    whole = planned(tmp_path, experiments, "--budget", "2h")
    assert "left_out" not in whole["summary"] and len(whole["cells"]) == 6
    nothing = planned(tmp_path, experiments, "--budget", "1s")
    assert nothing["cells"] == [] and "left out by the budget" in nothing["shown"]


def test_a_long_cell_that_does_not_fit_keeps_no_shorter_one_out(tmp_path: Path) -> None:
    recipes = write(tmp_path, experiment("four"))
    (recipes / "experiments.yaml").write_text(
        "lcplan: 1\nexperiments: {e: {stacks: [four], workloads: [x, w]}, f: {stacks: [two], workloads: [w]}}\n"
    )
    long = next(c for c in made(recipes, Snapshot()).cells if c.workload == "x")
    plan = made(recipes, Snapshot(durations={long.fingerprint: 9000.0}), budget="1h")
    assert [(c.stack, c.workload) for c in plan.cells] == [("four", "w"), ("two", "w")]
    assert plan.summary["makespan_s"] <= 3600


def test_history_knows_better_than_the_table(tmp_path: Path) -> None:
    recipes = write(tmp_path, experiment("four", "two"))
    first = made(recipes, Snapshot())
    cell = next(c for c in first.cells if c.stack == "four")
    plan = made(recipes, Snapshot(durations={cell.fingerprint: 1000.0}, loads={"four": 50.0}))
    four = next(one for one in plan.launches if one.stack == "four")
    assert (four.load_s, four.measure_s) == (50.0, 1000.0)
    assert plan.summary["durations_from_history"] == 1
    assert [c.fingerprint for c in plan.cells] == [c.fingerprint for c in first.cells]


def test_letters_order_ports_and_serves_make_no_record_stale(tmp_path: Path) -> None:
    recipes = write(tmp_path, experiment("four", "two", "eight", more=", repeats: 2"))
    done = {c.fingerprint: Recorded(f"r{i}", c.name, "done") for i, c in enumerate(made(recipes, Snapshot()).cells)}
    recorded = Snapshot("line", 1, done)
    assert not made(recipes, recorded).changes
    head, _, quads = NODE.partition("      a: ")
    a, b = f"      a: {quads}".splitlines()
    swapped = {
        "order": f"{head}{b}\n{a}\n",
        "letters": NODE.replace("      a: ", "      c: "),
        "swapped": NODE.replace("  a: ", "  t: ").replace("  b: ", "  a: ").replace("  t: ", "  b: "),
        "ports": NODE.replace("8000-8099", "9000-9049").replace("8100-8199", "9100-9149"),
        "cpus": NODE.replace("0-47,96-143", "0-47"),
    }
    for name, node in swapped.items():
        write(tmp_path, experiment("four", "two", "eight", more=", repeats: 2"), node)
        plan = made(recipes, recorded)
        assert not plan.changes and {c.action for c in plan.cells} == {"="}, name
    write(tmp_path, experiment("four", "two", "eight", more=", repeats: 2") + "serve: {chat: {stack: four, quad: a}}\n")
    plan = made(recipes, recorded)
    assert {c.action for c in plan.cells} == {"="} and {o.launch for o in plan.operations} == {"serve/chat"}


def test_a_plan_file_keeps_placements_whole(tmp_path: Path) -> None:
    from lcplan.plan import file

    planned(tmp_path, experiment("pd", "two"))
    raw = (tmp_path / "plan.json").read_bytes()
    read, _ = file.parse(raw, "plan.json")
    assert json.loads(file.text(read)) == json.loads(raw)
    pd = next(one for one in read.launches if one.stack == "pd")
    assert pd.placement is not None and pd.placement.roles["decode"].gpus == (0, 1, 2, 3)


def test_the_plan_draws_what_runs_side_by_side(tmp_path: Path) -> None:
    serve = "serve: {chat: {stack: two, quad: a}}\n"
    plan = planned(tmp_path, experiment("two", "four", more=", repeats: 2") + serve)
    bars = [line for line in plan["shown"].splitlines() if "|" in line]
    assert [line.split(" |")[0].strip() for line in bars] == ["n/a GPU 2,3", "n/b GPU 4-7", "n/a GPU 0,1"]
    assert bars[0].endswith("busy") and bars[2].endswith("held") and "serve chat" in bars[2]
    shown = lcplan("plan", "recipes", "--runtime", "sim", "--format", "md", cwd=tmp_path).out
    assert "#### Placement" in shown and "| 2,3 | 24-47,120-143 |" in shown and "8050-8099" in shown


def test_a_plan_of_thousands_of_launches_is_still_read(tmp_path: Path) -> None:
    plan = planned(tmp_path, experiment("two", more=", repeats: 2000"))
    assert "1850 more launches are in the plan file" in plan["shown"] and len(plan["shown"]) < 66_000
