"""Checks a node as a recipe declares it, alone and against the machine when that is known."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lcplan.base.diagnostics import Diagnostic, Source, error, warning
from lcplan.node.cpulist import format_cpus, parse_cpus
from lcplan.node.model import Topology


def check_node(
    declared: Mapping[str, Any], topology: Topology | None = None, source: Source | None = None
) -> list[Diagnostic]:
    """Return what is wrong with `{gpu: {model, memory_gib, count}, quads: {name: {gpus, numa, cpus, ports}}}`.

    GPUs that don't exist, overlapping quads, CPU lists and port blocks; with a topology also CPUs and NUMA nodes
    outside the machine and quads bound far from their GPUs. `source` is where the node is declared.
    """
    quads = {name: quad for name, quad in (declared.get("quads") or {}).items() if isinstance(quad, Mapping)}
    found = [*_check_gpus(declared, quads, topology), *_check_ports(quads), *_check_cpus(quads)]
    if topology:
        found += _check_machine(quads, topology)
    return [Diagnostic(d.severity, d.code, d.message, d.hint, d.source or source, d.related) for d in found]


def parse_ports(block: str | int | Sequence[int]) -> range:
    """Return the ports of a block: `8000-8099`, one number, or (first, last). Raises ValueError with a sentence."""
    text = str(block) if isinstance(block, (str, int)) else "-".join(map(str, block))
    found = re.fullmatch(r"\s*(\d{1,5})\s*(?:-\s*(\d{1,5}))?\s*", text)
    if not found:
        raise ValueError(f"'{text}' is no block of ports; expected for example 8000-8099")
    first, last = int(found[1]), int(found[2] or found[1])
    if not 1 <= first <= last <= 65535:
        raise ValueError(f"'{text}' is no block of ports: it must ascend within 1-65535")
    return range(first, last + 1)


def _check_gpus(
    declared: Mapping[str, Any], quads: Mapping[str, Mapping[str, Any]], topology: Topology | None
) -> list[Diagnostic]:
    found: list[Diagnostic] = []
    count = (declared.get("gpu") or {}).get("count")
    if topology and topology.gpu_count is not None and isinstance(count, int) and topology.gpu_count != count:
        message = f"the node declares {count} GPUs, the machine shows {topology.gpu_count}"
        found.append(warning("gpu-count-differs", message))
    owner: dict[int, str] = {}
    for name, quad in quads.items():
        for gpu in quad.get("gpus") or ():
            if not isinstance(gpu, int) or isinstance(gpu, bool) or gpu < 0:
                found.append(error("gpu-unknown", f"quad {name}: {gpu!r} is no GPU index"))
            elif isinstance(count, int) and gpu >= count:
                hint = f"indices run from 0 to {count - 1}" if count > 0 else ""
                found.append(error("gpu-unknown", f"quad {name} holds GPU {gpu}, the node has {count} GPUs", hint))
            elif owner.setdefault(gpu, name) != name:
                found.append(error("quads-overlap", f"GPU {gpu} is in quads {owner[gpu]} and {name}"))
        if len(set(map(str, quad.get("gpus") or ()))) != len(quad.get("gpus") or ()):
            found.append(error("quads-overlap", f"quad {name} names a GPU twice"))
    return found


def _check_ports(quads: Mapping[str, Mapping[str, Any]]) -> list[Diagnostic]:
    found: list[Diagnostic] = []
    blocks: dict[str, range] = {}
    for name, quad in quads.items():
        if not quad.get("ports"):
            continue
        try:
            block = parse_ports(quad["ports"])
        except ValueError as wrong:
            found.append(error("ports-malformed", f"quad {name}: {wrong}"))
            continue
        for other, theirs in blocks.items():
            if block.start < theirs.stop and theirs.start < block.stop:
                message = f"the ports of quads {other} ({quads[other]['ports']}) and {name} ({quad['ports']}) overlap"
                found.append(error("ports-overlap", message))
        blocks[name] = block
    return found


def _check_cpus(quads: Mapping[str, Mapping[str, Any]]) -> list[Diagnostic]:
    found: list[Diagnostic] = []
    taken: dict[str, frozenset[int]] = {}
    for name, quad in quads.items():
        try:
            cpus = parse_cpus(_cpu_text(quad))
        except ValueError as wrong:
            found.append(error("malformed-cpu-list", f"quad {name}: {wrong}"))
            continue
        for other, theirs in taken.items():
            if cpus & theirs:
                message = f"quads {other} and {name} share the CPUs {format_cpus(cpus & theirs)}"
                hint = "servers side by side disturb each other's measurements on shared CPUs"
                found.append(warning("cpus-overlap", message, hint))
        taken[name] = cpus
    return found


def _check_machine(quads: Mapping[str, Mapping[str, Any]], topology: Topology) -> list[Diagnostic]:
    found: list[Diagnostic] = []
    machine = frozenset().union(*(node.cpus for node in topology.nodes))
    gpus = {gpu.index: gpu for gpu in topology.gpus}
    for name, quad in quads.items():
        try:
            cpus = parse_cpus(_cpu_text(quad))
        except ValueError:
            continue
        outside = cpus - machine
        if machine and outside:
            message = f"quad {name}: the machine has no CPUs {format_cpus(outside)}; it has {format_cpus(machine)}"
            found.append(error("cpus-outside", message))
        nodes = {node.index for node in topology.nodes}
        absent = [node for node in quad.get("numa") or () if nodes and node not in nodes]
        if absent:
            message = f"quad {name}: the machine has no NUMA node {', '.join(map(str, absent))}"
            found.append(error("numa-outside", message))
        members = [gpus[gpu] for gpu in quad.get("gpus") or () if isinstance(gpu, int) and gpu in gpus]
        near = frozenset().union(*(parse_cpus(gpu.cpus) for gpu in members))
        if cpus and near and not cpus & near:
            message = f"quad {name} is bound to CPUs {format_cpus(cpus)}, its GPUs are near {format_cpus(near)}"
            found.append(warning("quad-far-from-gpus", message, "bind the quad to the socket of its GPUs"))
        homes = {node for gpu in members for node in gpu.numa}
        bound = set(quad.get("numa") or ())
        if homes and bound and not bound <= homes:
            message = f"quad {name} is bound to NUMA nodes {sorted(bound)}, its GPUs are on {sorted(homes)}"
            found.append(warning("quad-far-from-gpus", message, "bind the quad to the nodes of its GPUs"))
    return found


def _cpu_text(quad: Mapping[str, Any]) -> str:
    cpus = quad.get("cpus")
    return "" if cpus is None else str(cpus)
