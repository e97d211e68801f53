"""The reference campaign: 137 cells in 12 launches, planned as it stands. Golden: cells, argv, text, Markdown."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit import REPO, lcplan

GOLDEN = REPO / "tests" / "golden"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the reference campaign."""
    shutil.copytree(REPO / "recipes", tmp_path / "recipes")
    return tmp_path


def planned(folder: Path, *words: str) -> dict[str, Any]:
    ran = lcplan("plan", "recipes", "--runtime", "sim", "-o", "p.json", "--json", *words, cwd=folder)
    assert ran.code == 0, ran.err
    return dict(json.loads(ran.out))


def golden(name: str, text: str) -> None:
    """Compare with a golden file; LCPLAN_UPDATE_GOLDEN=1 writes it."""
    path = GOLDEN / name
    if os.environ.get("LCPLAN_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), f"{name} differs; LCPLAN_UPDATE_GOLDEN=1 rewrites it"


def test_it_has_137_cells_in_12_launches(folder: Path) -> None:
    plan = planned(folder)
    assert len(plan["cells"]) == 137
    assert len(plan["launches"]) == 12
    lines = [f"{c['action']} {c['launch']}/{c['cell']} {','.join(c['experiments'])}" for c in plan["cells"]]
    golden("reference.cells.txt", "\n".join(lines) + "\n")


def test_every_cell_stands_on_a_line_of_its_own(folder: Path) -> None:
    plan = planned(folder)
    lines = (folder / "p.json").read_text().splitlines()
    for cell in plan["cells"]:
        assert sum(line.startswith("{") and f'"fingerprint":"{cell["fingerprint"]}"' in line and '"op"' not in line
                   for line in lines) == 1  # fmt: skip


def test_the_plan_is_the_same_in_every_process(folder: Path) -> None:
    made = set()
    for seed in ("1", "2", "3", "4"):
        words = [sys.executable, "-m", "lcplan", "plan", "recipes", "--runtime", "sim", "-o", "p.json"]
        subprocess.run(words, cwd=folder, env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True)
        made.add((folder / "p.json").read_bytes())
    assert len(made) == 1


def test_argv_are_those_of_the_campaign(folder: Path) -> None:
    plan = planned(folder)
    argv = {o["launch"]: o["argv"] for o in plan["operations"] if o["op"] == "launch"}
    golden("reference.argv.txt", "".join(f"{name}: {' '.join(words)}\n" for name, words in sorted(argv.items())))
    glm = " ".join(argv["glm53_flash"])
    assert (
        "--max-model-len 1048576 --gpu-memory-utilization 0.92 --enable-chunked-prefill --enable-prefix-caching "
        "--language-model-only --max-num-batched-tokens 8192 --tensor-parallel-size 4 --max-num-seqs 64" in glm
    )
    dsv4 = " ".join(argv["dsv4_flash_0731_fp8"])
    assert (
        "--context-length 1048576 --tp-size 4 --kv-cache-dtype fp8_e4m3 --page-size 256 --mem-fraction-static 0.90 "
        "--chunked-prefill-size 4096 --swa-full-tokens-ratio 0.1 --max-running-requests 64" in dsv4
    )
    env = next(o["env"] for o in plan["operations"] if o["op"] == "launch" and o["launch"] == "dsv4_flash_0731_fp8")
    assert env == {"SGLANG_DSV4_FP4_EXPERTS": "0"}


def test_schedule_is_near_its_lower_bound(folder: Path) -> None:
    summary = planned(folder)["summary"]
    assert summary["makespan_s"] <= 1.05 * summary["lower_bound_s"]


@pytest.mark.parametrize("form", ["text", "md"])
def test_views(folder: Path, form: str) -> None:
    ran = lcplan("plan", "recipes", "--runtime", "sim", "-o", "p.json", "--format", form, cwd=folder)
    assert len(ran.out) <= 65_000
    golden(f"reference.plan.{'txt' if form == 'text' else 'md'}", re.sub(r"plan [0-9a-f]{12}", "plan ID", ran.out))


def test_show_prints_what_plan_printed(folder: Path) -> None:
    ran = lcplan("plan", "recipes", "--runtime", "sim", "-o", "p.json", cwd=folder)
    shown = lcplan("show", "p.json", cwd=folder)
    assert ran.out.startswith(shown.out.rstrip("\n"))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda d: _edit(d / "stacks.yaml", "# both sockets", "# all of it"), id="a comment"),
        pytest.param(lambda d: (d / "stacks.yaml").rename(d / "a_stacks.yaml"), id="order of files"),
        pytest.param(lambda d: _edit(d / "node.yaml", "8000-8099", "9000-9099"), id="ports"),
        pytest.param(lambda d: _edit(d / "stacks.yaml", "mem-fraction-static: 0.90", "mem-fraction-static: 0.9"),
                     id="0.90 is 0.9"),
        pytest.param(lambda d: _edit(d / "stacks.yaml", "network: host", "network: bridge"), id="the container around"),
        pytest.param(lambda d: _edit(d / "stacks.yaml", "gpu-memory-utilization: 0.92\n",
                                     "gpu_memory_utilization: 0.92\n"), id="underscores"),
    ],
)  # fmt: skip
def test_no_fingerprint_moves(folder: Path, change: Any) -> None:
    before = {c["cell"] + c["launch"]: c["fingerprint"] for c in planned(folder)["cells"]}
    change(folder / "recipes")
    after = {c["cell"] + c["launch"]: c["fingerprint"] for c in planned(folder)["cells"]}
    assert after == before


@pytest.mark.parametrize(
    ("change", "moved"),
    [
        pytest.param(("stacks.yaml", "max-num-seqs: 8}", "max-num-seqs: 9}"), {"glm53"}, id="one stack's cap"),
        pytest.param(("stacks.yaml", "swa-full-tokens-ratio: 0.1", "swa-full-tokens-ratio: 0.2"),
                     {"dsv4_flash_0731_fp8", "dsv4_flash_fp8"}, id="an anchor of two stacks"),
        pytest.param(("stacks.yaml", "v0.5.21", "v0.5.22"), {"dsv4_flash_0731_fp8", "dsv4_flash_fp8"}, id="image"),
        pytest.param(("experiments.yaml", "quad: a\n", "quad: b\n"), {"glm53_flash"}, id="a pin"),
    ],
)  # fmt: skip
def test_exactly_these_stacks_become_stale(folder: Path, change: tuple[str, str, str], moved: set[str]) -> None:
    before = {c["fingerprint"] for c in planned(folder)["cells"]}
    _edit(folder / "recipes" / change[0], *change[1:])
    new = [c for c in planned(folder)["cells"] if c["fingerprint"] not in before]
    assert {c["stack"] for c in new} == moved


def test_selectors_make_a_partial_plan(folder: Path) -> None:
    plan = planned(folder, "--target", "stack=glm53_flash,prompt>=524288", "--target", "experiment=ramp")
    assert plan["partial"] == {"target": ["stack=glm53_flash,prompt>=524288", "experiment=ramp"]}
    workloads = {c["workload"] for c in plan["cells"]}
    assert workloads == {"needle", "oneshot_1m", "decode_depth", "document_sweep", "ramp_1m"}
    ran = lcplan("plan", "recipes", "--target", "stak=x", cwd=folder)
    assert ran.code == 1 and "keys:" in ran.err and "stack" in ran.err


def test_formatting_is_idempotent_and_keeps_the_content(folder: Path) -> None:
    before = planned(folder)["recipes"]["parsed"]
    assert lcplan("fmt", "recipes", cwd=folder).code == 0
    once = {p.name: p.read_bytes() for p in (folder / "recipes").iterdir()}
    assert lcplan("fmt", "recipes", "--check", cwd=folder).code == 0
    assert {p.name: p.read_bytes() for p in (folder / "recipes").iterdir()} == once
    assert planned(folder)["recipes"]["parsed"] == before
    for path in (REPO / "recipes").iterdir():
        comments = re.findall(r"#.*", path.read_text())
        assert [c.split() for c in re.findall(r"#.*", once[path.name].decode())] == [c.split() for c in comments]


def test_graph_orders_operations(folder: Path) -> None:
    planned(folder)
    ran = lcplan("graph", "p.json", "--json", cwd=folder)
    graph = json.loads(ran.out)
    assert len(graph["nodes"]) == len(set(graph["nodes"]))
    assert all(a in graph["nodes"] and b in graph["nodes"] for a, b in graph["edges"])
    assert lcplan("graph", "p.json", cwd=folder).out.startswith("digraph plan {")
    assert lcplan("graph", "p.json", "--launches", "--format", "mermaid", cwd=folder).out.startswith("flowchart TD")


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
