"""Views of a topology: JSON for programs, tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

from lcplan.base.diagnostics import Diagnostic
from lcplan.node.cpulist import format_cpus
from lcplan.node.model import Gpu, Quad, Topology, degraded, groups, islands
from lcplan.node.nodefile import declaration

if TYPE_CHECKING:
    from rich.table import Table


def topology_json(topology: Topology, quads: Sequence[Quad], findings: Sequence[Diagnostic]) -> dict[str, Any]:
    """Return what `topology show --json` prints. None stands for what the tables don't tell."""
    nodes = {str(node.index): format_cpus(node.cpus) for node in topology.nodes if node.cpus} or None
    memory_only = [node.index for node in topology.nodes if node.memory_only] if topology.nodes else None
    return {
        "gpu_count": topology.gpu_count,
        "nic_count": None if topology.nics is None else len(topology.nics),
        "nics": None if topology.nics is None else list(topology.nics),
        "numa_gpus": _grouped(topology, lambda gpu: ",".join(_runs(gpu.numa))),
        "cpu_affinity": _grouped(topology, lambda gpu: gpu.cpus),
        "link": _link(topology),
        "groups": _lists(groups(topology)),
        "unknown_gpus": list(topology.unknown),
        "degraded_gpus": degraded(topology),
        "hidden_gpus": list(topology.hidden),
        "p2p_pairs": _lists(topology.p2p_pairs),
        "sockets": topology.socket_count,
        "nodes": nodes,
        "cpu_nodes": nodes,
        "cpuless": memory_only,
        "empty": memory_only,
        "size_mb": {str(node.index): node.size_mb for node in topology.nodes if node.size_mb is not None} or None,
        "free_mb": {str(node.index): node.free_mb for node in topology.nodes if node.free_mb is not None} or None,
        "gpus": [_gpu(gpu) for gpu in topology.gpus],
        "islands": [{"gpus": list(island.gpus), "complete": island.complete} for island in islands(topology)],
        "socket_list": [
            {"socket": s.index, "numa": list(s.numa), "cpus": format_cpus(s.cpus), "gpus": list(s.gpus)}
            for s in topology.sockets
        ],
        "quads": declaration(topology, quads)["quads"],
        "findings": [finding.as_json() for finding in findings],
        "diagnostics": [diagnostic.as_json() for diagnostic in topology.diagnostics],
    }


def topology_text(
    topology: Topology, quads: Sequence[Quad], findings: Sequence[Diagnostic], width: int = 120, color: bool = False
) -> str:
    """Return the topology for people: GPUs, islands, sockets and NUMA nodes, quads, findings."""
    from io import StringIO

    from rich.console import Console

    out = StringIO()
    console = Console(file=out, width=width, force_terminal=color, no_color=not color, highlight=False)
    if topology.gpus:
        console.print(_gpu_table(topology, quads))
        console.print(f"links: {_link(topology) or 'not known'}", markup=False)
        joined = [f"[{','.join(map(str, island.gpus))}]" for island in islands(topology) if len(island.gpus) > 1]
        console.print(f"NVLink islands: {' '.join(joined) or 'none'}", markup=False)
    if topology.nodes:
        console.print(_node_table(topology))
    if quads:
        console.print(_quad_table(quads))
    for finding in findings:
        console.print(f"{finding.severity}: {finding.message}", markup=False)
        if finding.hint:
            console.print(f"  hint: {finding.hint}", markup=False)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _grouped(topology: Topology, key: Any) -> dict[str, list[int]] | None:
    found: dict[str, list[int]] = {}
    for gpu in topology.gpus:
        if key(gpu):
            found.setdefault(key(gpu), []).append(gpu.index)
    return found or None


def _runs(numbers: Sequence[int]) -> list[str]:
    return [format_cpus(numbers)] if numbers else []


def _link(topology: Topology) -> str | None:
    """Return `all CELL` when every known pair is alike, `single` for one GPU, else each kind of cell with its count."""
    if topology.gpu_count == 1:
        return "single"
    if not topology.links:
        return None
    known = [gpu.index for gpu in topology.gpus if gpu.index not in topology.unknown]
    cells = [cell for pair in combinations(known, 2) if (cell := topology.link(*pair))] or list(topology.links.values())
    kinds = sorted(set(cells))
    return f"all {kinds[0]}" if len(kinds) == 1 else ", ".join(f"{kind} x {cells.count(kind)}" for kind in kinds)


def _lists(pairs: Sequence[Sequence[int]] | None) -> list[list[int]] | None:
    return None if pairs is None else [list(pair) for pair in pairs]


def _gpu(gpu: Gpu) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "uuid": gpu.uuid or None,
        "name": gpu.name or None,
        "memory_gib": gpu.memory_gib,
        "bus_id": gpu.bus_id or None,
        "numa": list(gpu.numa) or None,
        "cpus": gpu.cpus or None,
        "mig": gpu.mig,
    }


def _gpu_table(topology: Topology, quads: Sequence[Quad]) -> Table:
    """Return a row per GPU; columns of which no table says anything are left out."""
    owner = {gpu: quad.name for quad in quads for gpu in quad.gpus}
    columns = {
        "GPU": [str(gpu.index) for gpu in topology.gpus],
        "name": [gpu.name for gpu in topology.gpus],
        "memory": [f"{gpu.memory_gib:.1f} GiB" if gpu.memory_gib else "" for gpu in topology.gpus],
        "bus id": [gpu.bus_id for gpu in topology.gpus],
        "UUID": [gpu.uuid for gpu in topology.gpus],
        "NUMA": [format_cpus(gpu.numa) for gpu in topology.gpus],
        "CPUs": [gpu.cpus for gpu in topology.gpus],
        "quad": ["row missing" if gpu.index in topology.unknown else owner.get(gpu.index, "") for gpu in topology.gpus],
    }
    known = {name: cells for name, cells in columns.items() if any(cells) or name in ("NUMA", "CPUs")}
    table = _table(*known)
    for row in zip(*known.values(), strict=True):
        table.add_row(*(cell or "?" for cell in row))
    return table


def _node_table(topology: Topology) -> Table:
    socket_of = {node: str(socket.index) for socket in topology.sockets for node in socket.numa}
    table = _table("NUMA node", "socket", "CPUs", "memory", "GPUs")
    for node in topology.nodes:
        near = ",".join(str(gpu.index) for gpu in topology.gpus if node.index in gpu.numa)
        size = "?" if node.size_mb is None else f"{node.size_mb} MB"
        cpus = "none (memory only)" if node.memory_only else format_cpus(node.cpus) or "?"
        table.add_row(str(node.index), socket_of.get(node.index, "-" if node.memory_only else "?"), cpus, size, near)
    return table


def _quad_table(quads: Sequence[Quad]) -> Table:
    table = _table("quad", "GPUs", "NUMA", "CPUs", "ports")
    for quad in quads:
        table.add_row(
            quad.name, ",".join(map(str, quad.gpus)), format_cpus(quad.numa) or "?", quad.cpus or "?", quad.ports
        )
    return table


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
