"""Writes a topology as the `nodes:` section of a recipe."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from lcplan.base.diagnostics import fail, has_errors
from lcplan.node.model import Quad, Topology


def node_recipe(topology: Topology, quads: Sequence[Quad], name: str) -> str:
    """Return a recipe file that declares the machine with these quads.

    Raises LcplanError when the tables don't tell enough to declare it (no GPU, cut tables, no model or memory) or
    contradict each other.
    """
    if has_errors(topology.diagnostics):
        wrong = [diagnostic for diagnostic in topology.diagnostics if diagnostic.severity == "error"]
        raise fail("node-not-written", "the tables contradict each other", "solve the errors first", wrong[0].source)
    if not quads or topology.unknown:
        raise fail("node-not-written", "the tables don't show all GPUs", "give a whole `nvidia-smi topo -m`")
    gpu = declaration(topology, quads)["gpu"]
    if not gpu["model"] or not gpu["memory_gib"]:
        hint = "give `nvidia-smi --query-gpu=index,uuid,name,memory.total,pci.bus_id --format=csv` too"
        raise fail("node-not-written", "model and memory of the GPUs are not known", hint)
    lines = [
        "lcplan: 1",
        "",
        "nodes:",
        f"  {name}:",
        f"    gpu: {{model: {_text(gpu['model'])}, memory: {gpu['memory_gib']:.1f}GiB, count: {gpu['count']}}}",
        "    quads:",
    ]
    for quad in quads:
        lines += _quad(quad)
    return "\n".join(lines) + "\n"


def declaration(topology: Topology, quads: Sequence[Quad]) -> dict[str, Any]:
    """Return the machine as `check_node` takes a declared one, for planning on a machine that one doesn't have.

    `model` and `memory_gib` are None when no table says them.
    """
    sizes = [gpu.memory_gib for gpu in topology.gpus if gpu.memory_gib]
    model = " + ".join(sorted({gpu.name for gpu in topology.gpus} - {""}))
    return {
        "gpu": {"model": model or None, "memory_gib": min(sizes, default=None), "count": topology.gpu_count or 0},
        "quads": {
            quad.name: {
                "gpus": list(quad.gpus),
                "numa": list(quad.numa),
                "cpus": quad.cpus,
                "ports": quad.ports,
                "uuids": list(quad.uuids),
            }
            for quad in quads
        },
    }


def safe_name(text: str) -> str:
    """Return a name that a recipe may declare, made of a host name: its first part, other characters as `-`."""
    name = re.sub(r"[^A-Za-z0-9-]+", "-", text.split(".")[0]).strip("-")
    return name or "node"


def _quad(quad: Quad) -> list[str]:
    fields = {"gpus": _numbers(quad.gpus)}
    if quad.numa:
        fields["numa"] = _numbers(quad.numa)
    if quad.cpus:
        fields["cpus"] = json.dumps(quad.cpus)
    fields["ports"] = quad.ports
    if not quad.uuids:
        return [f"      {quad.name}: {{{', '.join(f'{key}: {value}' for key, value in fields.items())}}}"]
    lines = [f"      {quad.name}:", *(f"        {key}: {value}" for key, value in fields.items())]
    return [*lines, "        uuids:", *(f"          - {uuid}" for uuid in quad.uuids)]


def _numbers(values: Sequence[int]) -> str:
    return f"[{', '.join(map(str, values))}]"


def _text(value: str) -> str:
    return value if re.fullmatch(r"[A-Za-z][A-Za-z0-9 .-]*", value) else json.dumps(value)
