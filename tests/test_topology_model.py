"""The model behind the tables: groups, islands, crossings, quads, declared nodes, live tools, and any text at all."""

from __future__ import annotations

import json
import os
import random
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lcplan.base.diagnostics import LcplanError
from lcplan.node.combine import read_topology
from lcplan.node.cpulist import format_cpus, parse_cpus, split_cpus
from lcplan.node.declared import check_node
from lcplan.node.detect import detect, observe
from lcplan.node.model import Topology, crossings, degraded, groups, islands
from lcplan.node.nodefile import declaration
from lcplan.node.quads import findings, propose_quads
from lcplan.view.topology import topology_json, topology_text

CASES = {
    case["id"]: case
    for name in ("topology.json", "topology_more.json")
    for case in json.loads((Path(__file__).parent / "cases" / name).read_text())["cases"]
}


def topology(*names: str, extra: str = "") -> Topology:
    return read_topology([(name, CASES[name]["text"]) for name in names] + ([("extra", extra)] if extra else []))


def codes(diagnostics: Any) -> set[str]:
    return {diagnostic.code for diagnostic in diagnostics}


@given(st.sets(st.integers(0, 300)))
def test_cpu_lists_there_and_back(cpus: set[int]) -> None:
    assert parse_cpus(format_cpus(cpus)) == cpus
    halves = split_cpus(cpus, 2)
    assert halves[0] | halves[1] == cpus and not halves[0] & halves[1]


@pytest.mark.parametrize("text", ["3-1", "a", "1--2", "-1", "0-99999999", "1;2", "0x3"])
def test_malformed_cpu_lists(text: str) -> None:
    with pytest.raises(ValueError, match="CPU"):
        parse_cpus(text)


def test_hyper_threads_stay_with_their_cores_when_cpus_are_shared() -> None:
    assert [format_cpus(part) for part in split_cpus(parse_cpus("0-47,96-143"), 2)] == ["0-23,96-119", "24-47,120-143"]


def test_islands_and_crossings() -> None:
    mesh, boards, switch = topology("M08"), topology("M09"), topology("T05")
    assert [(island.gpus, island.complete) for island in islands(mesh)] == [(tuple(range(8)), False)]
    assert [island.gpus for island in islands(boards)] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert crossings(switch, range(8)) == [] and crossings(None, range(8)) == []
    assert crossings(boards, [0, 1, 2, 3]) == []
    assert len(crossings(boards, range(8))) == 16
    assert crossings(boards, [3, 4]) == ["GPU3-GPU4 (SYS link, different NVLink islands, NUMA node 0 to NUMA node 1)"]
    assert crossings(topology("T12"), range(4)) == []
    assert crossings(topology("T15"), [3, 4]) == ["GPU3-GPU4 (SYS link, NUMA node 0 to NUMA node 1)"]
    assert crossings(boards, [0, 99]) == []


def test_sockets_come_from_count_packages_or_distances() -> None:
    four = "".join(f"node {n} cpus: {2 * n} {2 * n + 1}\n" for n in range(4))
    far = "node distances:\n  0: 10 12 32 32\n  1: 12 10 32 32\n  2: 32 32 10 12\n  3: 32 32 12 10\n"
    by_distance = read_topology([("numactl", four + far), ("lscpu", "Socket(s): 2\n")])
    assert [socket.numa for socket in by_distance.sockets] == [(0, 1), (2, 3)]
    assert read_topology([("numactl", four), ("lscpu", "Socket(s): 2\n")]).sockets == ()
    assert [s.numa for s in read_topology([("lscpu", four + "Socket(s): 1\n")]).sockets] == [(0, 1, 2, 3)]
    assert [(s.numa, s.gpus) for s in topology("M30").sockets] == [((0,), ()), ((1,), (0,))]


def test_quads_by_socket_when_lscpu_tells_it() -> None:
    lscpu = "Socket(s): 2\n" + "".join(
        f"NUMA node{n} CPU(s): {28 * n}-{28 * n + 27},{112 + 28 * n}-{139 + 28 * n}\n" for n in range(4)
    )
    distances = "node distances:\n  0: 10 12 32 32\n  1: 12 10 32 32\n  2: 32 32 10 12\n  3: 32 32 12 10\n"
    numactl = "".join(f"node {n} size: 1 MB\n" for n in range(4)) + distances
    known = topology("M21", extra=lscpu + numactl)
    assert known.diagnostics == () and [socket.gpus for socket in known.sockets] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    quads = propose_quads(known)
    assert [(quad.numa, quad.cpus) for quad in quads] == [((0, 1), "0-55,112-167"), ((2, 3), "56-111,168-223")]
    said = {finding.code: finding.message for finding in findings(known)}
    assert "by socket" in said["quads-by-convention"] and "quad-spans-numa" in said


def test_quads_of_one_socket_share_its_cpus_without_overlap() -> None:
    rows = "".join(
        f"GPU{i} " + " ".join("X" if i == j else "NV12" if i // 4 == j // 4 else "NODE" for j in range(8)) + " 0-63 0\n"
        for i in range(8)
    )
    quads = propose_quads(
        read_topology([("t", "GPU0 GPU1 GPU2 GPU3 GPU4 GPU5 GPU6 GPU7 CPU Affinity NUMA Affinity\n" + rows)])
    )
    assert [(quad.name, quad.cpus, quad.ports) for quad in quads] == [
        ("a", "0-31", "8000-8099"),
        ("b", "32-63", "8100-8199"),
    ]


def test_memory_only_nodes_are_nothing_to_bind_to() -> None:
    text = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-71\t0,2\t\tN/A\n"
    lscpu = "NUMA node0 CPU(s): 0-71\nNUMA node2 CPU(s):\n"
    known = read_topology([("t", text), ("l", lscpu)])
    assert known.diagnostics == () and propose_quads(known)[0].numa == (0,)
    assert "memory-only-nodes" in codes(findings(known))


def test_a_gpu_that_lost_all_its_links_is_degraded_and_a_lone_one_is_not() -> None:
    head = "GPU0 GPU1 GPU2 GPU3 CPU Affinity NUMA Affinity\n"

    def rows(link: Any) -> str:
        return head + "".join(
            f"GPU{i} " + " ".join("X" if i == j else link(min(i, j), max(i, j)) for j in range(4)) + " 0-7 0\n"
            for i in range(4)
        )

    assert degraded(read_topology([("t", rows(lambda i, j: "SYS" if j == 3 else "NV18"))])) == [3]
    assert degraded(read_topology([("t", rows(lambda i, j: "NV12" if (i, j) == (0, 1) else "SYS"))])) == []
    assert degraded(read_topology([("t", rows(lambda i, j: "NV3" if (i, j) == (0, 1) else "NV4"))])) == [0, 1]


def test_contradictions_between_tools() -> None:
    smi = "index, uuid, name, pci.bus_id\n0, GPU-aaaa0000, NVIDIA H200, 00000000:06:00.0\n"
    other = "index, uuid, name, pci.bus_id\n0, GPU-bbbb0000, NVIDIA H200, 00000000:06:00.0\n"
    assert codes(read_topology([("a", smi), ("b", other)]).diagnostics) == {"tables-disagree"}
    sysfs = "/sys/bus/pci/devices/0000:06:00.0/numa_node:1\n"
    assert codes(topology("T14", extra=smi + "\n" + sysfs).diagnostics) == {"tables-disagree"}
    absent = topology("T18", extra="NUMA node0 CPU(s): 0-191\n").diagnostics
    assert codes(absent) == {"tables-disagree"} and [d.source.line for d in absent if d.source] == [2, 3, 4, 5]
    assert topology("T09", "T14").diagnostics[0].code == "contradictory-table"


NODE = {
    "gpu": {"model": "H200", "memory_gib": 141.0, "count": 8},
    "quads": {
        "a": {"gpus": [0, 1, 2, 3], "numa": [0], "cpus": "0-47,96-143", "ports": "8000-8099"},
        "b": {"gpus": [4, 5, 6, 7], "numa": [1], "cpus": "48-95,144-191", "ports": "8100-8199"},
    },
}


def declared(**changes: Any) -> dict[str, Any]:
    return {**NODE, "quads": {**NODE["quads"], "b": {**NODE["quads"]["b"], **changes}}}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"gpus": [4, 5, 6, 8]}, "gpu-unknown"),
        ({"gpus": ["4"]}, "gpu-unknown"),
        ({"gpus": [3, 4, 5, 6]}, "quads-overlap"),
        ({"gpus": [4, 4, 5, 6]}, "quads-overlap"),
        ({"ports": "8050-8150"}, "ports-overlap"),
        ({"ports": "80-79"}, "ports-malformed"),
        ({"ports": "many"}, "ports-malformed"),
        ({"cpus": "48-40"}, "malformed-cpu-list"),
        ({"cpus": "40-95"}, "cpus-overlap"),
        ({"cpus": "48-95,144-200"}, "cpus-outside"),
        ({"numa": [7]}, "numa-outside"),
        ({"cpus": "0-3", "numa": [1]}, "quad-far-from-gpus"),
        ({"numa": [0]}, "quad-far-from-gpus"),
    ],
)
def test_declared_node(changes: dict[str, Any], code: str) -> None:
    machine = topology("T19", extra="NUMA node0 CPU(s): 0-47,96-143\nNUMA node1 CPU(s): 48-95,144-191\n")
    assert check_node(NODE, machine) == []
    assert code in codes(check_node(declared(**changes), machine))


@pytest.mark.parametrize("name", sorted(CASES))
def test_what_is_proposed_is_a_sound_declaration(name: str) -> None:
    found = topology(name)
    declared = declaration(found, propose_quads(found))
    indices = [gpu for quad in declared["quads"].values() for gpu in quad["gpus"]]
    if indices == list(range(len(indices))):
        assert check_node(declared, found) == []


def test_declared_node_alone_and_against_a_smaller_machine() -> None:
    assert check_node(NODE) == [] and check_node({}) == []
    assert codes(check_node(NODE, topology("T18"))) == {"gpu-count-differs", "quad-far-from-gpus"}


def tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_detect_runs_the_tools_and_survives_those_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path(__file__).parent / "real" / "vllm-0.25.1-h200"
    tool(tmp_path, "nvidia-smi", f'case "$1" in topo) cat {real}/topo.txt;; *) cat {real}/smi.csv;; esac')
    tool(tmp_path, "lscpu", "echo broken >&2; exit 3")
    tool(tmp_path, "numactl", "sleep 60 & wait")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin{os.pathsep}/usr/bin")
    sysfs = tmp_path / "sys"
    (sysfs / "devices/system/node/node0").mkdir(parents=True)
    (sysfs / "devices/system/node/node0/cpulist").write_text("0-31\n")
    started = time.monotonic()
    found = detect(sysfs, deadline=0.5)
    assert time.monotonic() - started < 10
    assert found.gpu_count == 2 and found.gpus[0].uuid and [node.index for node in found.nodes] == [0]
    said = {d.source.file: d.message for d in found.diagnostics if d.code == "tool-failed" and d.source}
    assert said == {"lscpu": "exit status 3: broken", "numactl -H": "no answer in 0.5 s"}
    assert observe([str(sysfs)]).nodes == observe([str(tmp_path / "sys")]).nodes == found.nodes


def test_saved_files_in_a_folder_and_in_utf_16(tmp_path: Path) -> None:
    (tmp_path / "topo.txt").write_bytes(CASES["T05"]["text"].encode("utf-16"))
    (tmp_path / "lscpu.txt").write_text("Socket(s): 2\n")
    found = observe([str(tmp_path)])
    assert found.gpu_count == 8 and found.socket_count == 2
    with pytest.raises(LcplanError, match="file-unreadable"):
        observe([str(tmp_path / "nothing")])


WORDS = [
    "GPU0", "GPU1", "GPU2", "GPU11", "NIC0", "mlx5_0", "CPU Affinity", "NUMA Affinity", "GPU NUMA ID", "X", " X ",
    "NV18", "NV180-31", "SYSSYS", "PHB", "N/A", "0-31", "0-15,32-47", "9-3", "0", "\t", "\n", "\n\n", " ",
    "Legend:", "OK", "NS", "node 0 cpus: 0 1 2", "NUMA node0 CPU(s): 0-3", "Socket(s): 2",
    "GPU[0] : (Topology) Numa Node: 1", "XGMI", "\u001b[4m", "index, uuid, name", "0, GPU-aaaa1111, H100",
    "available: 3 nodes (0-2)", "99999999999999999999", "\u0661", "|", ",",
    "/sys/devices/system/node/node0/cpulist:0-3", "==> /sys/devices/system/cpu/online <==",
    "GPU 0: L4 (UUID: GPU-1)",
]  # fmt: skip


def whole(text: str) -> None:
    found = read_topology([("any", text)])
    quads, notes = propose_quads(found), findings(found)
    json.dumps(topology_json(found, quads, notes), allow_nan=False)
    topology_text(found, quads, notes)
    groups(found)
    crossings(found, [gpu.index for gpu in found.gpus])
    placed = [gpu for quad in quads for gpu in quad.gpus]
    assert len(placed) == len(set(placed))


@given(st.one_of(st.text(max_size=300), st.lists(st.sampled_from(WORDS), max_size=60).map(" ".join)))
@settings(max_examples=250, deadline=None)
def test_any_text_gives_a_result_or_diagnostics(text: str) -> None:
    whole(text)


@given(st.sampled_from(sorted(CASES)), st.randoms(use_true_random=False))
@settings(max_examples=250, deadline=None)
def test_damaged_tables_give_a_result_or_diagnostics(name: str, chance: random.Random) -> None:
    text = CASES[name]["text"]
    for _ in range(chance.randint(1, 4)):
        at, end = sorted((chance.randint(0, len(text)), chance.randint(0, len(text))))
        text = chance.choice(
            [
                text[:at] + text[end:],
                text[:at] + chance.choice(WORDS) + text[at:],
                text[:at],
                text[at:],
                text + text[at:end],
            ]
        )
    whole(text)


@pytest.mark.parametrize(
    "word", [*WORDS, "GPU0 GPU1\n", "GPU0 X NV18 0-31 0 N/A\n", "(UUID: ", "a", "0-1,", "NV1", " \t"]
)
def test_reading_takes_linear_time(word: str) -> None:
    def seconds(size: int) -> float:
        text = word * (size // len(word) + 1)
        started = time.process_time()
        read_topology([("any", text)])
        return time.process_time() - started

    small = min(seconds(10_000) for _ in range(2))
    assert seconds(80_000) < 8 * small * 4 + 0.2
