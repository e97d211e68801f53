"""Any OpenAI-compatible server by its command: planned, applied and measured; what can't be known is named unknown."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lcplan.apply.demo import free_ports
from tests.kit import REPO, campaign, lcplan

SERVER = str(REPO / "tests" / "openai_server.py")


def recipe(port: int, *command: str) -> str:
    words = json.dumps([sys.executable, SERVER, "--port", "{port}", "--model", "{model}", *command])
    return f"""\
lcplan: 1
engines:
  other: {{kind: openai, runtime: process, command: {words}}}
models: {{m: {{path: acme/m, context: 32K}}}}
nodes:
  n:
    gpu: {{model: H200, memory: 141GiB, count: 2}}
    quads: {{a: {{gpus: [0, 1], ports: {port}-{port + 9}}}}}
stacks:
  s: {{model: m, engine: other, layout: tp2, context: 32K}}
workloads:
  w: {{kind: oneshot, prompt: 1K, output: 8}}
  g: {{kind: grid, output: 8, points: [{{prompt: 512, users: 2}}]}}
experiments:
  first: {{stacks: [s], workloads: [w, g]}}
"""


def applied(folder: Path, text: str) -> tuple[int, list[dict[str, Any]], dict[str, Any], str]:
    campaign(folder / "recipes", text)
    planned = lcplan("plan", "recipes", "-o", "plan.json", cwd=folder)
    assert planned.code == 0, planned.err
    done = lcplan("apply", "plan.json", "--yes", "--json", cwd=folder)
    runs = json.loads(lcplan("runs", "list", "--json", cwd=folder).out)
    manifests = [json.loads(p.read_text()) for p in sorted((folder / "state" / "runs").glob("*/manifest.json"))]
    return done.code, runs, manifests[-1]["predicate"] if manifests else {}, done.out + done.err


@pytest.mark.parametrize("hole", [True, False])
def test_a_server_by_its_command_is_measured(tmp_path: Path, hole: bool) -> None:
    code, runs, seen, said = applied(tmp_path, recipe(free_ports(), *(("--name", "{run_id}") if hole else ())))
    assert code == 0, said
    assert seen["engine"]["identity"] == ("proven" if hole else "unproven")
    assert ("identity-unproven" in said) is not hole
    assert not seen["simulated"] and seen["engine"]["version"] is None and seen["engine"]["served_version"] is None
    logged = seen["capacity"]["logged"]
    assert (logged["pool_tokens"], logged["pool_source"], logged["cap"]) == (None, "unknown", None)
    assert {fit["limit"] for fit in seen["capacity"]["fits"].values()} == {"unknown"}
    metrics = {cell["cell"]: cell["metrics"] for run in runs for cell in run["cells"] if cell["status"] == "done"}
    assert metrics.keys() == {"w", "g.prompt=512.users=2"}
    assert 0.04 < metrics["w"]["ttft_s"]["value"] < 1
    assert lcplan("plan", "recipes", cwd=tmp_path).out.startswith("No changes")


@pytest.mark.parametrize("hole", [True, False])
def test_a_rehearsal_needs_no_such_server(tmp_path: Path, hole: bool) -> None:
    campaign(tmp_path / "recipes", recipe(free_ports(), *(("--name", "{run_id}") if hole else ())))
    assert lcplan("plan", "recipes", "-o", "plan.json", cwd=tmp_path).code == 0
    done = lcplan("apply", "plan.json", "--runtime", "sim", "--yes", "--json", cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    (run,) = (tmp_path / "state" / "runs").iterdir()
    assert "openai_server.py" in (run / "cmd.sh").read_text()
    assert json.loads((run / "manifest.json").read_text())["predicate"]["simulated"] is True


def test_a_server_that_serves_another_name_is_not_taken_for_ours(tmp_path: Path) -> None:
    words = recipe(free_ports(), "--name", "{run_id}").replace('"--name", "{run_id}"', '"--name", "x", "{run_id}"')
    code, _, _, said = applied(tmp_path, words.replace(SERVER, str(stubborn(tmp_path))))
    assert code == 1 and ("foreign_server" in said or "engine_stuck" in said)


def stubborn(folder: Path) -> Path:
    """A server that takes the served name and does not use it."""
    made = folder / "stubborn.py"
    made.write_text(f"import runpy, sys\nsys.argv.pop()\nrunpy.run_path({SERVER!r}, run_name='__main__')\n")
    return made


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["serve", "{port}"], "command-without-run-id"),
        (["serve", "--name", "{run_id}"], "command-without-port"),
        (["serve", "{port}", "--name={run_id}"], "run-id-inside-word"),
    ],
)
def test_a_command_with_a_hole_too_few_is_told(tmp_path: Path, command: list[str], code: str) -> None:
    text = recipe(20000).split("command: ")
    rest = text[1].partition("]")[2]
    campaign(tmp_path / "recipes", f"{text[0]}command: {json.dumps(command)}{rest}")
    assert f"[{code}]" in lcplan("validate", "recipes", cwd=tmp_path).err


def test_another_engine_without_a_command_is_an_error(tmp_path: Path) -> None:
    text = recipe(20000).split(", command: ")
    campaign(tmp_path / "recipes", text[0] + text[1].partition("]")[2])
    ran = lcplan("validate", "recipes", cwd=tmp_path)
    assert ran.code == 1 and "missing-key" in ran.err
