"""Joins all tables of one machine to a topology and says where they contradict each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from lcplan.base.diagnostics import Diagnostic, Source, error, warning
from lcplan.node.cpulist import format_cpus, parse_cpus
from lcplan.node.cpus import CpuTable, PciDevice, read_cpu_tables
from lcplan.node.inventory import GpuRecord, read_inventory
from lcplan.node.matrix import Matrix, PeerMatrix, read_matrices
from lcplan.node.model import Gpu, NumaNode, Socket, Topology
from lcplan.node.text import Line, lines_of


def read_topology(texts: Sequence[tuple[str, str]]) -> Topology:
    """Return what saved outputs say together. `texts` holds (file name, text); a text may hold several tables.

    Which tool wrote what is told by its shape. Never raises for a text: what is cut, contradictory or no table at all
    is in the diagnostics of the topology.
    """
    lines = [line for file, text in texts for line in lines_of(text, file)]
    matrices, found = read_matrices(lines)
    records, wrong = read_inventory(lines)
    tables, devices, more = read_cpu_tables(lines)
    found += [*wrong, *more]
    if not (matrices or records or tables):
        found.append(_nothing(lines, texts))
        return Topology(diagnostics=tuple(found))
    matrix = _one_matrix([table for table in matrices if isinstance(table, Matrix)], found)
    peers = next((table for table in matrices if isinstance(table, PeerMatrix)), None)
    nodes, sources = _nodes(tables, found)
    gpus = _gpus(matrix, peers, records, found)
    hidden = _hidden(gpus, records, devices)
    gpus = _located(gpus, nodes, devices, found)
    _check_nodes(matrix, gpus, nodes, sources, found)
    sockets = _socket_count(tables)
    return Topology(
        gpu_count=_count(matrix, peers, gpus, records, devices),
        gpus=tuple(gpus.values()),
        links=matrix.links if matrix else {},
        unknown=tuple(gpu for gpu in matrix.gpus if gpu not in matrix.rows) if matrix else (),
        nics=matrix.nics if matrix else None,
        p2p_pairs=peers.pairs if peers else None,
        nodes=tuple(nodes.values()),
        socket_count=sockets,
        sockets=_sockets(tables, sockets, nodes, gpus),
        hidden=hidden,
        diagnostics=tuple(found),
    )


def _nothing(lines: list[Line], texts: Sequence[tuple[str, str]]) -> Diagnostic:
    empty = not any(line.text.strip() for line in lines)
    return error(
        "no-topology",
        "the text is empty" if empty else "no table of GPUs, CPUs or NUMA nodes was found in the text",
        "known: nvidia-smi topo -m, nvidia-smi --query-gpu=... --format=csv, nvidia-smi -L, lscpu, numactl -H, "
        "rocm-smi --showtopo, files of /sys",
        Source(texts[0][0]) if texts else None,
    )


def _one_matrix(matrices: list[Matrix], found: list[Diagnostic]) -> Matrix | None:
    """Return the first matrix of links; a later one must say the same of the same GPUs."""
    if not matrices:
        return None
    first, *others = matrices
    for other in others:
        same = other.gpus == first.gpus and other.links == first.links
        if not same:
            message = "a second matrix of links differs from the first, which counts"
            hint = "give the tables of one machine only, taken at one time"
            found.append(warning("contradictory-table", message, hint, other.source, first.source))
    return first


def _gpus(
    matrix: Matrix | None, peers: PeerMatrix | None, records: list[GpuRecord], found: list[Diagnostic]
) -> dict[int, Gpu]:
    """Return GPUs by index: those of the matrix, else those of the lists; fields that lists add."""
    listed = dict.fromkeys(record.index for record in records)
    indices = matrix.gpus if matrix else peers.gpus if peers else tuple(sorted(listed))
    gpus = {index: Gpu(index) for index in indices}
    for index, row in (matrix.rows if matrix else {}).items():
        gpus[index] = replace(gpus[index], numa=row.numa, cpus=row.cpus)
    said: dict[tuple[int, str], Source] = {}
    for record in records:
        gpu = gpus.get(record.index)
        if gpu is None:
            continue
        for name in ("uuid", "name", "memory_gib", "bus_id", "numa", "cpus"):
            value, known = getattr(record, name), getattr(gpu, name)
            if value and known and value != known and name != "cpus":
                message = f"two tables disagree about the {name} of GPU{gpu.index}: {_show(known)} and {_show(value)}"
                place = said.get((gpu.index, name)) or (matrix.rows[gpu.index].source if matrix else record.source)
                found.append(error("tables-disagree", message, "give the tables of one machine", record.source, place))
            elif value and not known:
                gpu = replace(gpu, **{name: value})
                said[gpu.index, name] = record.source
        gpus[record.index] = replace(gpu, mig=gpu.mig or record.mig)
    owners: dict[str, int] = {}
    for gpu in gpus.values():
        if gpu.uuid and owners.setdefault(gpu.uuid, gpu.index) != gpu.index:
            message = f"GPU{owners[gpu.uuid]} and GPU{gpu.index} have the same UUID"
            found.append(error("tables-disagree", message, "", said.get((gpu.index, "uuid"))))
    return gpus


def _show(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _count(
    matrix: Matrix | None,
    peers: PeerMatrix | None,
    gpus: dict[int, Gpu],
    records: list[GpuRecord],
    devices: dict[str, PciDevice],
) -> int | None:
    if matrix or peers or records:
        return len(gpus)
    visible = [device for device in devices.values() if device.is_gpu]
    return len(visible) or None


def _hidden(gpus: dict[int, Gpu], records: list[GpuRecord], devices: dict[str, PciDevice]) -> tuple[str, ...]:
    """Return in words which GPUs the machine has beyond those in the tables."""
    if not gpus:
        return ()
    indices = {*range(max(gpus)), *(record.index for record in records)} - gpus.keys()
    hidden = [f"GPU {format_cpus(indices)}"] if indices else []
    buses = {gpu.bus_id for gpu in gpus.values() if gpu.bus_id} | {record.bus_id for record in records}
    if buses - {""}:
        hidden += [f"the device at {bus}" for bus, device in devices.items() if device.is_gpu and bus not in buses]
    return tuple(hidden)


def _nodes(tables: list[CpuTable], found: list[Diagnostic]) -> tuple[dict[int, NumaNode], dict[int, Source]]:
    """Return NUMA nodes as the first tool that lists them says; the others must agree."""
    nodes: dict[int, NumaNode] = {}
    sources: dict[int, Source] = {}
    tools: dict[int, str] = {}
    for table in tables:
        for node in sorted(table.nodes.keys() | table.size_mb.keys()):
            cpus = table.nodes.get(node)
            place = table.sources.get(node, table.source)
            old = nodes.get(node)
            if old and old.cpus_known and cpus is not None and old.cpus != cpus:
                message = (
                    f"{tools[node]} gives NUMA node {node} the CPUs {format_cpus(old.cpus) or 'none'}, "
                    f"{table.tool} gives it {format_cpus(cpus) or 'none'}"
                )
                found.append(error("tables-disagree", message, "give the tables of one machine", place, sources[node]))
            base = old or NumaNode(node)
            if cpus is not None and not base.cpus_known:
                base = replace(base, cpus=cpus, cpus_known=True)
            size, free = table.size_mb.get(node), table.free_mb.get(node)
            nodes[node] = replace(base, size_mb=base.size_mb or size, free_mb=base.free_mb or free)
            sources.setdefault(node, place)
            tools.setdefault(node, table.tool)
        outside = frozenset().union(*table.nodes.values()) - table.online if table.online else frozenset()
        if outside:
            message = f"{table.tool}: CPUs {format_cpus(outside)} belong to a NUMA node and are not online"
            found.append(warning("contradictory-table", message, "", table.source))
    return dict(sorted(nodes.items())), sources


def _located(
    gpus: dict[int, Gpu], nodes: dict[int, NumaNode], devices: dict[str, PciDevice], found: list[Diagnostic]
) -> dict[int, Gpu]:
    """Return GPUs with NUMA node and CPUs filled in from sysfs by bus id, from the CPU list, or from the node."""
    located: dict[int, Gpu] = {}
    for index, gpu in gpus.items():
        device = devices.get(gpu.bus_id)
        if device and device.numa is not None:
            if gpu.numa and device.numa not in gpu.numa:
                message = (
                    f"GPU{index} ({gpu.bus_id}) is on NUMA node {device.numa} in sysfs, {_show(gpu.numa)} elsewhere"
                )
                found.append(error("tables-disagree", message, "give the tables of one machine", device.source))
            gpu = replace(gpu, numa=gpu.numa or (device.numa,), cpus=gpu.cpus or device.cpus)
        if gpu.cpus and not gpu.numa:
            cpus = parse_cpus(gpu.cpus)
            gpu = replace(gpu, numa=tuple(node.index for node in nodes.values() if node.cpus and node.cpus <= cpus))
        if gpu.numa and not gpu.cpus:
            gpu = replace(gpu, cpus=format_cpus(_cpus_of(gpu.numa, nodes)))
        located[index] = gpu
    return located


def _check_nodes(
    matrix: Matrix | None,
    gpus: dict[int, Gpu],
    nodes: dict[int, NumaNode],
    sources: dict[int, Source],
    found: list[Diagnostic],
) -> None:
    """Compare the affinities of GPUs with the NUMA nodes that lscpu, numactl or sysfs list."""
    if not nodes:
        return
    for gpu in gpus.values():
        place = matrix.rows[gpu.index].source if matrix and gpu.index in matrix.rows else None
        hint = "the tables are of different machines, or NUMA settings changed between them"
        absent = [node for node in gpu.numa if node not in nodes]
        if absent:
            message = f"GPU{gpu.index} is on NUMA node {_show(tuple(absent))}, which no CPU table lists"
            found.append(error("tables-disagree", message, hint, place, *sources.values()))
            continue
        local = _cpus_of(gpu.numa, nodes)
        if local and gpu.cpus and not parse_cpus(gpu.cpus) <= local:
            message = (
                f"GPU{gpu.index} is near CPUs {gpu.cpus} on NUMA node {_show(gpu.numa)}, "
                f"but that node has CPUs {format_cpus(local)}"
            )
            found.append(error("tables-disagree", message, hint, place, *(sources[node] for node in gpu.numa)))


def _cpus_of(numa: Iterable[int], nodes: dict[int, NumaNode]) -> frozenset[int]:
    return frozenset().union(*(nodes[node].cpus for node in numa if node in nodes))


def _socket_count(tables: list[CpuTable]) -> int | None:
    printed = next((table.sockets for table in tables if table.sockets), None)
    packages = {package for table in tables for package in table.packages.values()}
    return printed or len(packages) or None


def _sockets(
    tables: list[CpuTable], count: int | None, nodes: dict[int, NumaNode], gpus: dict[int, Gpu]
) -> tuple[Socket, ...]:
    """Return sockets where NUMA nodes can be told to belong to one: by package ids, by number, by distances."""
    with_cpus = [node for node in nodes.values() if node.cpus]
    packages = {cpu: package for table in tables for cpu, package in table.packages.items()}
    parts: list[list[NumaNode]] = []
    if with_cpus and all(cpu in packages for node in with_cpus for cpu in node.cpus):
        by_package: dict[int, list[NumaNode]] = {}
        for node in with_cpus:
            by_package.setdefault(packages[min(node.cpus)], []).append(node)
        parts = [by_package[package] for package in sorted(by_package)]
    elif count == 1 and with_cpus:
        parts = [with_cpus]
    elif count == len(with_cpus):
        parts = [[node] for node in with_cpus]
    elif count:
        distances = next((table.distances for table in tables if table.distances), {})
        parts = _by_distance(with_cpus, sorted(nodes), distances, count)
    sockets = []
    for index, part in enumerate(parts):
        numa = tuple(node.index for node in part)
        cpus = frozenset().union(*(node.cpus for node in part))
        near = tuple(gpu.index for gpu in gpus.values() if gpu.numa and set(gpu.numa) & set(numa))
        sockets.append(Socket(index, numa, cpus, near))
    return tuple(sockets)


def _by_distance(
    nodes: list[NumaNode], order: list[int], distances: dict[int, list[int]], count: int
) -> list[list[NumaNode]]:
    """Return nodes in `count` parts whose inner distances are the smallest, or nothing when none gives that count."""
    for limit in sorted({distance for row in distances.values() for distance in row}):
        parts: list[list[NumaNode]] = []
        for node in nodes:
            row = dict(zip(order, distances.get(node.index, ()), strict=False))
            near = next((part for part in parts if row.get(part[0].index, limit + 1) <= limit), None)
            if near is None:
                parts.append([node])
            else:
                near.append(node)
        if len(parts) == count:
            return parts
    return []
