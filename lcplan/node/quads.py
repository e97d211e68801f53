"""Proposes quads for a topology and says what they rest on."""

from __future__ import annotations

from collections.abc import Iterator

from lcplan.base.diagnostics import Diagnostic, warning
from lcplan.node.cpulist import format_cpus, parse_cpus, split_cpus
from lcplan.node.model import Gpu, Island, Quad, Topology, degraded, is_fast, islands

USUAL = 4
"""GPUs of a quad."""

FIRST_PORT, PORTS = 8000, 100
"""Quad a gets ports 8000-8099, quad b 8100-8199, and so on."""


def propose_quads(topology: Topology) -> list[Quad]:
    """Return quads a, b, ... over all GPUs whose place is known, none when there is no GPU.

    An NVLink island of three or four GPUs is a quad. A larger one is cut by socket (by NUMA node when sockets are not
    known; nodes of fewer than four GPUs are joined up to four). GPUs without NVLink, and pairs of bridged ones, form
    one quad per socket. Quads of one socket share its CPUs in equal parts.
    """
    gpus = {gpu.index: gpu for gpu in topology.gpus if gpu.index not in topology.unknown}
    parts: list[tuple[int, ...]] = []
    rest: list[Gpu] = []
    for island in islands(topology):
        members = [gpus[index] for index in island.gpus if index in gpus]
        if len(island.gpus) < 3:
            rest += members
        elif len(island.gpus) <= USUAL:
            parts.append(tuple(gpu.index for gpu in members))
        else:
            parts += _joined(_by_home(topology, members)) if not topology.sockets else _by_home(topology, members)
    parts = sorted(part for part in [*parts, *_by_home(topology, rest)] if part)
    cpus = _cpu_shares(topology, [[gpus[index] for index in part] for part in parts])
    return [
        Quad(
            name,
            part,
            _nodes(topology, [gpus[index] for index in part]),
            cpus[at],
            f"{FIRST_PORT + PORTS * at}-{FIRST_PORT + PORTS * (at + 1) - 1}",
            tuple(gpus[index].uuid for index in part) if all(gpus[index].uuid for index in part) else (),
        )
        for at, (name, part) in enumerate(zip(_names(), parts, strict=False))
    ]


def findings(topology: Topology) -> list[Diagnostic]:
    """Return what a reader of the topology must know: what quads rest on, what is hidden, degraded or unknown."""
    if not topology.gpus:
        return [_note("no-gpus", "the machine shows no GPU")] if topology.gpu_count == 0 else []
    found = [*_about_quads(topology, propose_quads(topology), islands(topology))]
    weak = degraded(topology)
    if weak:
        message = f"{_gpus(weak)} {'has' if len(weak) == 1 else 'have'} fewer NVLinks than the others"
        hint = "see nvidia-smi nvlink -s; tensor parallelism over it runs at the speed of the weakest link"
        found.append(warning("degraded-links", message, hint))
    if topology.hidden:
        message = f"the machine has more GPUs than the tables show: {', '.join(topology.hidden)}"
        found.append(
            warning("hidden-gpus", message, "a container or CUDA_VISIBLE_DEVICES hides them; indices may differ")
        )
    if any(gpu.mig for gpu in topology.gpus):
        named = _gpus([gpu.index for gpu in topology.gpus if gpu.mig])
        found.append(warning("mig-enabled", f"{named}: MIG is on; there is no NVLink between MIG instances"))
    if len({gpu.name for gpu in topology.gpus if gpu.name}) > 1:
        names = ", ".join(f"GPU{gpu.index} {gpu.name}" for gpu in topology.gpus)
        hint = "address GPUs by UUID or set CUDA_DEVICE_ORDER=PCI_BUS_ID: CUDA numbers the fastest first"
        found.append(warning("unlike-gpus", f"the GPUs are not alike: {names}", hint))
    missing = [gpu.index for gpu in topology.gpus if not gpu.numa and gpu.index not in topology.unknown]
    if missing:
        hint = "give lscpu or numactl -H too; on a virtual machine the host hides it"
        found.append(warning("numa-unknown", f"the NUMA node of {_gpus(missing)} is not known", hint))
    memory_only = [str(node.index) for node in topology.nodes if node.memory_only]
    if memory_only:
        found.append(_note("memory-only-nodes", f"NUMA nodes {', '.join(memory_only)} have no CPUs: nothing to pin to"))
    return found


def _about_quads(topology: Topology, quads: list[Quad], all_islands: list[Island]) -> Iterator[Diagnostic]:
    names = ", ".join(quad.name for quad in quads)
    joined = [island for island in all_islands if len(island.gpus) > 1]
    by_index = {gpu.index: gpu for gpu in topology.gpus}
    word = "socket" if topology.sockets else "NUMA node"
    fast = any(is_fast(cell) for cell in topology.links.values())
    if topology.nics is not None and not fast and len(topology.gpus) > 1:
        yield _note("no-nvlink", "no NVLink between the GPUs: tensor parallelism goes over PCIe")
    sets = {island.gpus for island in joined}
    sizes = [len(quad.gpus) for quad in quads]
    uneven = len(set(sizes)) > 1 and len(topology.gpus) >= USUAL and not topology.unknown
    if len(quads) > 1 and sets == {quad.gpus for quad in quads}:
        yield _note("quads-are-islands", f"quads {names} are NVLink islands of their own")
    elif len(quads) > 1 and not uneven and len(joined) == 1 and len(joined[0].gpus) == len(topology.gpus):
        message = f"NVLink joins all {len(topology.gpus)} GPUs: quads {names} are only a convention, by {word}"
        yield _note("quads-by-convention", message)
    for quad in quads:
        inside = [island.gpus for island in joined if set(island.gpus) < set(quad.gpus)]
        if inside:
            listed = " and ".join(",".join(map(str, gpus)) for gpus in inside)
            yield _note("islands-in-quad", f"quad {quad.name} holds smaller NVLink islands: GPUs {listed}")
        homes = {home for gpu in quad.gpus if (home := topology.home(by_index[gpu]))}
        nodes = sorted({node for gpu in quad.gpus for node in by_index[gpu].numa})
        if len(homes) > 1 or (len(topology.sockets) and len({by_index[gpu].numa for gpu in quad.gpus}) > 1):
            hint = "bind each rank to the node of its GPU, or the quad to all of these nodes"
            message = f"quad {quad.name} (GPUs {','.join(map(str, quad.gpus))}) spans NUMA nodes {nodes}"
            if not nodes:
                message = f"quad {quad.name} (GPUs {','.join(map(str, quad.gpus))}) spans CPUs of different places"
            yield warning("quad-spans-numa", message, hint)
    if uneven:
        message = f"the GPUs split {'+'.join(map(str, sizes))} by {word}: there are no quads of equal size"
        yield warning("no-quads", message, "write the quads by hand, or use only layouts that fit each part")


def _by_home(topology: Topology, gpus: list[Gpu]) -> list[tuple[int, ...]]:
    parts: dict[tuple[str, str] | None, list[int]] = {}
    for gpu in gpus:
        parts.setdefault(topology.home(gpu), []).append(gpu.index)
    return list(map(tuple, parts.values()))


def _joined(parts: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Join neighbouring parts while they hold at most four GPUs: NUMA nodes are smaller than sockets on many boards."""
    joined: list[tuple[int, ...]] = []
    for part in sorted(parts):
        if joined and len(joined[-1]) + len(part) <= USUAL:
            joined[-1] = tuple(sorted(joined[-1] + part))
        else:
            joined.append(part)
    return joined


def _cpu_shares(topology: Topology, parts: list[list[Gpu]]) -> list[str]:
    """Return a CPU list per quad: the CPUs of its nodes, cut in equal parts among quads that share them."""
    cpus = [_near(topology, part) for part in parts]
    shares = []
    for at, own in enumerate(cpus):
        rivals = [other for other, theirs in enumerate(cpus) if theirs == own]
        shares.append(format_cpus(split_cpus(own, len(rivals))[rivals.index(at)]))
    return shares


def _near(topology: Topology, gpus: list[Gpu]) -> frozenset[int]:
    wanted = set(_nodes(topology, gpus))
    by_node = frozenset().union(*(node.cpus for node in topology.nodes if node.index in wanted))
    return by_node or frozenset().union(*(parse_cpus(gpu.cpus) for gpu in gpus))


def _nodes(topology: Topology, gpus: list[Gpu]) -> tuple[int, ...]:
    """Return the NUMA nodes of GPUs, without those known to have no CPUs."""
    empty = {node.index for node in topology.nodes if node.memory_only}
    return tuple(sorted({node for gpu in gpus for node in gpu.numa} - empty))


def _names() -> Iterator[str]:
    letters = "abcdefghijklmnopqrstuvwxyz"
    yield from letters
    yield from (one + other for one in letters for other in letters)


def _gpus(indices: list[int]) -> str:
    return ("GPU " if len(indices) == 1 else "GPUs ") + ",".join(map(str, indices))


def _note(code: str, message: str) -> Diagnostic:
    return Diagnostic("note", code, message)
