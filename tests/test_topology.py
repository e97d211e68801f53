"""Tables of real machines through `lcplan topology show --from FILE --json`, compared as the cases' `fields` say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from lcplan.cli.topology import register
from lcplan.node.cpulist import parse_cpus

HERE = Path(__file__).parent
CASES = [
    pytest.param(case, id=case["id"])
    for name in ("topology.json", "topology_more.json")
    for case in json.loads((HERE / "cases" / name).read_text())["cases"]
]

app = typer.Typer()
register(app)


def show(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["topology", "show", *arguments], input=stdin, catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


def as_sets(groups: list[list[int]] | None) -> set[frozenset[int]] | None:
    return None if groups is None else {frozenset(group) for group in groups}


def cpu_sets(nodes: dict[str, str | list[int]] | None) -> dict[str, frozenset[int]]:
    return {
        node: parse_cpus(cpus) if isinstance(cpus, str) else frozenset(cpus) for node, cpus in (nodes or {}).items()
    }


def differences(expected: dict[str, Any], got: dict[str, Any]) -> list[str]:
    """Return what is wrong with an answer: only the expected keys are checked."""
    wrong = []
    for key, value in expected.items():
        if key == "groups":
            same = value is None or as_sets(value) == as_sets(got[key])
        elif key in ("nodes", "cpu_nodes"):
            same = cpu_sets(value) == cpu_sets(got[key])
        elif key == "link":
            same = not value.startswith("all ") or value == got[key]
        elif key == "p2p_pairs":
            same = {tuple(pair) for pair in value} == {tuple(pair) for pair in got[key] or ()}
        elif key == "codes":
            said = {diagnostic["code"] for diagnostic in got["diagnostics"] + got["findings"]}
            same = set(value) <= said
            got = {**got, "codes": sorted(said)}
        elif key == "silent":
            said = {diagnostic["code"] for diagnostic in got["diagnostics"]}
            same = not said
            got = {**got, "silent": sorted(said)}
        elif key == "quads":
            same = value == {name: quad["gpus"] for name, quad in got["quads"].items()}
        else:
            same = value == got[key]
        if not same:
            wrong.append(f"{key}: expected {value}, got {got[key]}")
    return wrong


@pytest.mark.parametrize("case", CASES)
def test_case(case: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "topo.txt"
    file.write_text(case["text"])
    status, out, err = show("--from", str(file), "--json")
    assert differences(case["expected"], json.loads(out)) == []
    assert status == case.get("status", 0), err
    status, piped, _ = show("--from", "-", "--json", stdin=case["text"])
    assert json.loads(piped.replace("<stdin>", str(file))) == json.loads(out)


@pytest.mark.parametrize("case", CASES)
def test_case_with_windows_line_ends_and_colours(case: dict[str, Any]) -> None:
    lines = [f"\x1b[4m{line}\x1b[0m" for line in case["text"].split("\n")]
    _, out, _ = show("--from", "-", "--json", stdin="\r\n".join(lines))
    assert differences(case["expected"], json.loads(out)) == []


def test_real_capture() -> None:
    folder = HERE / "real" / "vllm-0.25.1-h200"
    status, out, _ = show("--from", str(folder / "topo.txt"), "--from", str(folder / "smi.csv"), "--json")
    got = json.loads(out)
    assert status == 0 and got["diagnostics"] == []
    assert got["gpu_count"] == 2 and got["numa_gpus"] == {"0": [0, 1]} and got["nic_count"] == 0
    assert got["gpus"][1]["uuid"] == "GPU-00000000-0000-0000-0000-000000000002"
    assert got["gpus"][1]["bus_id"] == "0000:00:07.0" and got["gpus"][0]["memory_gib"] == pytest.approx(140.4)
    assert got["quads"]["a"]["gpus"] == [0, 1] and got["quads"]["a"]["cpus"] == "0-31"


def test_text_view_names_what_was_found() -> None:
    case = next(case.values[0] for case in CASES if case.id == "T05")
    status, out, err = show("--from", "-", stdin=case["text"])
    assert status == 0 and err == ""
    assert "NVLink joins all 8 GPUs" in out and "52-103,156-207" in out and "8100-8199" in out


def test_unreadable_files_are_diagnostics(tmp_path: Path) -> None:
    status, _, err = show("--from", str(tmp_path / "none.txt"), "--json")
    assert status == 1 and "file-unreadable" in err
    status, out, err = show("--from", "-", "--json", stdin="hello\n")
    assert status == 1 and "no-topology" in err and json.loads(out)["gpu_count"] is None


def test_write_makes_a_node_file(tmp_path: Path) -> None:
    from ruamel.yaml import YAML

    uuids = [f"GPU-0000000{n}-0000-0000-0000-00000000000{n}" for n in range(8)]
    smi = "index, uuid, name, memory.total [MiB], pci.bus_id\n" + "\n".join(
        f"{n}, {uuid}, NVIDIA H200, 143771 MiB, 00000000:{n}1:00.0" for n, uuid in enumerate(uuids)
    )
    topo = next(case.values[0]["text"] for case in CASES if case.id == "T19")
    (tmp_path / "smi.csv").write_text(smi)
    (tmp_path / "topo.txt").write_text(topo)
    made = tmp_path / "new" / "node.yaml"
    arguments = ["--from", str(tmp_path / "topo.txt"), "--from", str(tmp_path / "smi.csv"), "--write", str(made)]
    assert show(*arguments, "--name", "gpu-7.example.org")[0] == 0
    node = YAML(typ="safe").load(made)["nodes"]["gpu-7"]
    assert node["gpu"] == {"model": "H200", "memory": "140.4GiB", "count": 8}
    assert node["quads"]["b"] == {
        "gpus": [4, 5, 6, 7],
        "numa": [1],
        "cpus": "48-95,144-191",
        "ports": "8100-8199",
        "uuids": uuids[4:],
    }
    made.write_text("other: 1\n")
    status, _, err = show(*arguments)
    assert status == 1 and "file-exists" in err
    status, _, err = show("--from", str(tmp_path / "topo.txt"), "--write", str(tmp_path / "x.yaml"))
    assert status == 1 and "node-not-written" in err and not (tmp_path / "x.yaml").exists()


def test_places_of_diagnostics_are_lines_of_the_table() -> None:
    topo = next(case.values[0]["text"] for case in CASES if case.id == "T05")
    lscpu = "Socket(s): 2\nNUMA node(s): 2\nNUMA node0 CPU(s): 0-47,96-143\nNUMA node1 CPU(s): 48-95,144-191\n"
    status, out, err = show("--from", "-", "--json", stdin=f"{topo}\n{lscpu}")
    wrong = [d for d in json.loads(out)["diagnostics"] if d["code"] == "tables-disagree"]
    assert status == 1 and "error[tables-disagree]" in err
    assert [d["line"] for d in wrong] == list(range(2, 10)) and "<stdin>:" in wrong[0]["related"][0]
