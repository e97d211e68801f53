"""Split layouts (`pd_1p1d`): prefill, decode and a router are three servers of one run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.kit import campaign, lcplan, start

ROLES = ("prefill", "decode", "router")


def split(port: int, *, decode: str = "", router: str = "", output: int = 8) -> str:
    return f"""\
lcplan: 1
engines: {{vllm: {{version: 0.31.0}}}}
models: {{m: {{path: /models/tiny, context: 32K}}}}
nodes:
  n:
    gpu: {{model: H200, memory: 141GiB, count: 8}}
    quads:
      a: {{gpus: [0, 1, 2, 3], ports: {port}-{port + 9}}}
      b: {{gpus: [4, 5, 6, 7], ports: {port + 10}-{port + 19}}}
stacks:
  s:
    model: m
    engine: vllm
    layout: pd_1p1d
    context: 32K
    args: {{max-num-seqs: 64}}
    roles:
      prefill: {{layout: tp4, quad: a}}
      decode: {{layout: tp2, quad: b{decode}}}
      router: {{engine: vllm-router{router}}}
workloads:
  g: {{kind: grid, output: {output}, points: [{{prompt: 1K, users: 2}}, {{prompt: 2K, users: 1}}]}}
experiments:
  first: {{stacks: [s], workloads: [g]}}
"""


def plan(folder: Path, text: str) -> dict[str, Any]:
    campaign(folder / "recipes", text)
    ran = lcplan("plan", "recipes", "--runtime", "sim", "--json", cwd=folder)
    assert ran.code == 0, ran.err
    return dict(json.loads(ran.out))


def manifest(folder: Path) -> dict[str, Any]:
    [path] = (folder / "state" / "runs").glob("*/manifest.json")
    return dict(json.loads(path.read_text())["predicate"])


def no_servers_left(folder: Path) -> bool:
    from lcplan.record import state
    from lcplan.runtime.process import RUNTIME

    found, _ = state.load(folder / "state")
    return found is None or RUNTIME.find(found.lineage) == []


def fault(**what: Any) -> str:
    text = json.dumps([{"match": "*", **what}])
    return f", env: {{LCPLAN_SIM_FAULTS: '{text}'}}"


def test_three_servers_measured_through_the_router(tmp_path: Path, port: int) -> None:
    plan(tmp_path, split(port))
    ran = lcplan("apply", cwd=tmp_path)
    assert ran.code == 0, ran.out + ran.err
    body = manifest(tmp_path)
    assert [cell["status"] for cell in body["cells"]] == ["done", "done"]
    servers = {one["role"]: one for one in body["servers"]}
    assert tuple(servers) == ROLES
    assert [servers[role]["port"] for role in ROLES] == [port + 1, port + 10, port]
    assert servers["prefill"]["gpus"] == [0, 1, 2, 3] and servers["decode"]["gpus"] == [4, 5]
    assert servers["prefill"]["env"] == {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(port + 10_001)}
    assert body["run"] in servers["decode"]["argv"] and body["argv"] == servers["router"]["argv"]
    assert body["capacity"]["logged"]["engines"] == 1
    [folder] = (tmp_path / "state" / "runs").iterdir()
    scripts = {role: (folder / f"cmd.{role}.sh").read_text() for role in ROLES}
    assert "kv_producer" in scripts["prefill"] and "kv_consumer" in scripts["decode"]
    assert "vllm-router" in scripts["router"]
    assert re.findall(r"cmd\.(\w+)\.sh", (folder / "cmd.sh").read_text()) == list(ROLES)
    assert all((folder / f"server.{role}.log").stat().st_size for role in ROLES)
    assert no_servers_left(tmp_path)
    assert lcplan("audit", "verify", cwd=tmp_path).code == 0
    assert lcplan("plan", "recipes", "--runtime", "sim", cwd=tmp_path).out.startswith("No changes")


def test_the_router_starts_when_those_behind_it_are_ready(tmp_path: Path, port: int) -> None:
    plan(tmp_path, split(port, decode=fault(fault="die_at_start", **{"class": "oom"})))
    ran = lcplan("apply", cwd=tmp_path)
    assert ran.code == 1 and "decode: the server ended" in ran.out
    body = manifest(tmp_path)
    assert [cell["status"] for cell in body["cells"]] == ["failed", "not_run"]
    assert body["cells"][0]["reason"] == "gpu_oom" or "memory" in body["cells"][0]["sentence"]
    [folder] = (tmp_path / "state" / "runs").iterdir()
    assert not (folder / "server.router.log").exists()
    assert no_servers_left(tmp_path)


def test_the_death_of_one_fails_the_cell_and_ends_all(tmp_path: Path, port: int) -> None:
    plan(tmp_path, split(port, decode=fault(fault="die_while_serving", requests=4)))
    ran = lcplan("apply", cwd=tmp_path)
    assert ran.code == 1
    cells = manifest(tmp_path)["cells"]
    assert "failed" in [cell["status"] for cell in cells] and cells[-1]["status"] != "done"
    assert no_servers_left(tmp_path)


def test_a_killed_apply_leaves_none_of_them(tmp_path: Path, port: int) -> None:
    plan(tmp_path, split(port, output=2000))
    process = start("apply", "--sim-speed", "2", "--json", cwd=tmp_path)
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "progress":
            break
    process.kill()
    process.wait()
    process.stdout.close()
    from lcplan.record import state
    from lcplan.runtime.process import RUNTIME

    found, _ = state.load(tmp_path / "state")
    assert found is not None
    assert {one.role for one in RUNTIME.find(found.lineage)} == set(ROLES)
    assert lcplan("destroy", "--yes", cwd=tmp_path).code == 0
    assert no_servers_left(tmp_path)
    assert [cell["status"] for cell in manifest(tmp_path)["cells"]] == ["interrupted", "not_run"]


def test_a_taken_port_of_any_server_is_named(tmp_path: Path, port: int) -> None:
    import socket

    plan(tmp_path, split(port))
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port + 10))
        other.listen()
        ran = lcplan("apply", cwd=tmp_path)
    assert ran.code == 1 and f"port {port + 10} is taken" in ran.out


@pytest.mark.parametrize(
    ("change", "moves"),
    [
        ({"decode": ", args: {max-num-seqs: 32}"}, True),
        ({"router": ", args: {policy: round_robin}"}, True),
        ({"decode": ", env: {X: '1'}"}, True),
        ({"decode": ", args: {max-num-seqs: 64}"}, False),
    ],
)
def test_what_each_role_is_decides_what_is_stale(tmp_path: Path, port: int, change: Any, moves: bool) -> None:
    before = plan(tmp_path, split(port))["cells"][0]["fingerprint"]
    assert (plan(tmp_path, split(port, **change))["cells"][0]["fingerprint"] != before) is moves
    assert plan(tmp_path, split(port + 100))["cells"][0]["fingerprint"] == before


def test_roles_that_cannot_be_split_are_blocked(tmp_path: Path, port: int) -> None:
    text = split(port).replace("vllm: {version: 0.31.0}", "vllm: {version: 0.31.0}, sglang: {version: 0.5.21}")
    found = plan(tmp_path, text.replace("engine: vllm\n", "engine: sglang\n").replace("max-num-seqs: 64", ""))
    assert {cell["action"] for cell in found["cells"]} == {"!"}
    assert "sglang" in found["cells"][0]["reason"]
