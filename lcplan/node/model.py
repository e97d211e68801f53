"""The model of one machine: GPUs and the links between them, islands, sockets, NUMA nodes, quads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations

from lcplan.base.diagnostics import Diagnostic

Pair = tuple[int, int]

LINK_RANK = {"NVLink": 0, "XGMI": 0, "PIX": 1, "PXB": 2, "PHB": 3, "PCIE": 3, "NODE": 4, "SYS": 5, "SOC": 5}
"""Classes of links from best to worst; SOC is what drivers before 2017 call SYS, XGMI and PCIE are AMD's words."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. Empty or None means not known from the tables. `numa` holds NUMA nodes, `cpus` a list as printed."""

    index: int
    uuid: str = ""
    name: str = ""
    memory_gib: float | None = None
    bus_id: str = ""
    numa: tuple[int, ...] = ()
    cpus: str = ""
    mig: bool = False


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One NUMA node. Sizes in MB as numactl prints them. `cpus` is empty too when a cut table does not say them."""

    index: int
    cpus: frozenset[int] = frozenset()
    cpus_known: bool = False
    size_mb: int | None = None
    free_mb: int | None = None

    @property
    def memory_only(self) -> bool:
        """Whether the node has no CPUs (HBM, CXL, GPU memory): no socket, nothing to pin to."""
        return self.cpus_known and not self.cpus


@dataclass(frozen=True, slots=True)
class Socket:
    """A CPU socket with its NUMA nodes, CPUs and the GPUs attached to it."""

    index: int
    numa: tuple[int, ...]
    cpus: frozenset[int]
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Island:
    """GPUs joined by NVLink, directly or through NVSwitch. `complete` is whether every pair has a link of its own."""

    gpus: tuple[int, ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class Quad:
    """A named group of GPUs launched together, in GPU order, with what is bound to it. `cpus` is a CPU list."""

    name: str
    gpus: tuple[int, ...]
    numa: tuple[int, ...] = ()
    cpus: str = ""
    ports: str = ""
    uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Topology:
    """What all tables of one machine say together.

    `gpu_count` is None when no table speaks of GPUs. `links` maps pairs (lower index first) to cells such as NV18 or
    SYS. `unknown` are GPUs named by the header of a table that lacks their row. `nics` is None without a matrix,
    `p2p_pairs` None without a peer-to-peer matrix. `socket_count` is as printed; `sockets` is empty when they can't be
    told apart. `hidden` says in words which GPUs the machine has beyond those listed.
    """

    gpu_count: int | None = None
    gpus: tuple[Gpu, ...] = ()
    links: Mapping[Pair, str] = field(default_factory=dict)
    unknown: tuple[int, ...] = ()
    nics: tuple[str, ...] | None = None
    p2p_pairs: tuple[Pair, ...] | None = None
    nodes: tuple[NumaNode, ...] = ()
    socket_count: int | None = None
    sockets: tuple[Socket, ...] = ()
    hidden: tuple[str, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()

    def link(self, one: int, other: int) -> str:
        """Return the cell of a pair, or "" when it is not known."""
        return self.links.get((min(one, other), max(one, other)), "")

    def home(self, gpu: Gpu) -> tuple[str, str] | None:
        """Return where a GPU is attached, as (word, name): its socket, else its NUMA node, else its CPU list."""
        for socket in self.sockets:
            if gpu.index in socket.gpus:
                return "socket", str(socket.index)
        if gpu.numa:
            return "NUMA node", ",".join(map(str, gpu.numa))
        return ("CPU list", gpu.cpus) if gpu.cpus else None


def link_class(cell: str) -> str:
    """Return the class of a cell: `NVLink` for any NV#, else the cell itself; "" stays ""."""
    return "NVLink" if cell.startswith("NV") else cell


def is_fast(cell: str) -> bool:
    """Return whether a cell is a link between GPUs of its own (NVLink, XGMI) and not a path over PCIe."""
    return bool(cell) and LINK_RANK.get(link_class(cell)) == 0


def islands(topology: Topology) -> list[Island]:
    """Return the components that NVLink makes of all GPUs, by lowest GPU; a GPU without NVLink is alone."""
    import networkx as nx

    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(gpu.index for gpu in topology.gpus)
    graph.add_edges_from(pair for pair, cell in topology.links.items() if is_fast(cell))
    found = []
    for component in nx.connected_components(graph):
        gpus = tuple(sorted(component))
        complete = graph.subgraph(gpus).number_of_edges() == len(gpus) * (len(gpus) - 1) // 2
        found.append(Island(gpus, complete))
    return sorted(found, key=lambda island: island.gpus)


def groups(topology: Topology) -> list[tuple[int, ...]] | None:
    """Return the best groups for tensor parallelism over GPUs whose rows are known, or None without any link table.

    A group is a set whose pairs all have the best class of link on the machine; the rest stand alone. When all pairs
    are alike, GPUs are split by NUMA node (one group when no node is known).
    """
    known = [gpu for gpu in topology.gpus if gpu.index not in topology.unknown]
    if topology.nics is None or not known:
        return [] if topology.gpu_count == 0 else None
    indices = [gpu.index for gpu in known]
    ranks = {pair: LINK_RANK.get(link_class(topology.link(*pair)), 99) for pair in combinations(indices, 2)}
    if len(set(ranks.values())) <= 1:
        return _by_node(known)
    best = min(ranks.values())
    return _cliques(indices, [pair for pair, rank in ranks.items() if rank == best])


def degraded(topology: Topology) -> list[int]:
    """Return GPUs with fewer NVLinks than the others of their island and of islands of the same size.

    In a full mesh a GPU's links are those of its best cell (NVSwitch prints the lower of both ends), and equal best
    cells are told apart by their sum; in other meshes a GPU's links are the sum over its cells. A GPU without any
    NVLink counts when all others form one island of three or more: bridges come in pairs, boards leave none out.
    """
    counts: dict[int, list[int]] = {gpu.index: [] for gpu in topology.gpus if gpu.index not in topology.unknown}
    for pair, cell in topology.links.items():
        if cell.startswith("NV") and cell[2:].isdecimal():
            for gpu in pair:
                counts.get(gpu, []).append(int(cell[2:]))
    found: list[int] = []
    all_islands = islands(topology)
    for kind in {(len(island.gpus), island.complete) for island in all_islands}:
        alike = [island for island in all_islands if (len(island.gpus), island.complete) == kind]
        members = {gpu: counts[gpu] for island in alike for gpu in island.gpus if counts.get(gpu)}
        figures = {gpu: max(links) if kind[1] else sum(links) for gpu, links in members.items()}
        if kind[1] and len(set(figures.values())) == 1:
            figures = {gpu: sum(links) for gpu, links in members.items()}
        found += [gpu for gpu, figure in figures.items() if figure < max(figures.values())]
    largest = max((len(island.gpus) for island in all_islands), default=0)
    if largest >= 3 and largest == len(topology.gpus) - 1:
        found += [gpu for gpu, links in counts.items() if not links]
    return sorted(found)


def crossings(topology: Topology | None, gpus: Collection[int]) -> list[str]:
    """Return the pairs of these GPUs over which tensor parallelism leaves an NVLink island or a socket, in words.

    A pair of one island never counts: NVLink carries its traffic whatever the sockets. Nothing is known without a
    topology: the list is empty.
    """
    if topology is None:
        return []
    by_index = {gpu.index: gpu for gpu in topology.gpus}
    island_of = {gpu: island.gpus for island in islands(topology) for gpu in island.gpus}
    fast = any(is_fast(cell) for cell in topology.links.values())
    found = []
    for one, other in combinations(sorted(set(gpus) & by_index.keys()), 2):
        if island_of[one] == island_of[other]:
            continue
        here, there = topology.home(by_index[one]), topology.home(by_index[other])
        reasons = ["different NVLink islands"] if fast else []
        if here and there and here != there:
            reasons.append(f"{here[0]} {here[1]} to {there[0]} {there[1]}")
        if reasons:
            path = [f"{topology.link(one, other)} link"] if topology.link(one, other) else []
            found.append(f"GPU{one}-GPU{other} ({', '.join([*path, *reasons])})")
    return found


def _by_node(gpus: Iterable[Gpu]) -> list[tuple[int, ...]]:
    parts: dict[tuple[int, ...], list[int]] = {}
    for gpu in gpus:
        parts.setdefault(gpu.numa, []).append(gpu.index)
    return sorted(tuple(part) for part in parts.values())


def _cliques(indices: list[int], pairs: list[Pair]) -> list[tuple[int, ...]]:
    """Cut GPUs into sets whose pairs are all linked: the largest such set first, then from what is left."""
    near: dict[int, set[int]] = {gpu: set() for gpu in indices}
    for one, other in pairs:
        near[one].add(other)
        near[other].add(one)
    left, found = list(indices), []
    while left:
        best: list[int] = []
        for seed in left:
            if len(near[seed]) < len(best):
                continue
            clique = [seed]
            for gpu in left:
                if gpu in near[seed] and all(gpu in near[member] for member in clique):
                    clique.append(gpu)
            best = max(best, clique, key=len)
        found.append(tuple(sorted(best)))
        left = [gpu for gpu in left if gpu not in best]
        for gpu in left:
            near[gpu] -= set(best)
    return sorted(found)
