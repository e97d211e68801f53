"""Where a launch may run: quads of the declared nodes, slots of GPUs in them, and the placement that a slot gives.

A layout that fits a quad takes aligned GPUs of one (`tp2` in a quad of four: its first or its second half), a larger
one all quads of a node, a `pd` layout takes quads of its own for prefill and for decode. GPUs are numbered through
all nodes (`Quad.first`), so that two launches may run side by side exactly when their slots share no number; CPUs and
ports of a quad are cut with its GPUs and so are disjoint whenever these are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from lcplan.base.layout import parse_layout
from lcplan.plan.model import Launch, Placement


@dataclass(frozen=True, slots=True)
class Quad:
    """One quad of one node. `first` is the number of its first GPU among the GPUs of all nodes."""

    node: str
    name: str
    gpus: tuple[int, ...]
    uuids: tuple[str, ...]
    cpus: str | None
    numa: tuple[int, ...]
    ports: tuple[int, int]
    first: int

    @property
    def numbers(self) -> range:
        """The numbers of its GPUs."""
        return range(self.first, self.first + len(self.gpus))

    @property
    def divisible(self) -> bool:
        """Whether several launches may share it: there is a port for each GPU."""
        return self.ports[1] - self.ports[0] + 1 >= len(self.gpus)


class Part(NamedTuple):
    """`width` GPUs of a quad from its `offset`th on, for one server; `role` is "" unless the layout is split."""

    quad: Quad
    offset: int
    width: int
    role: str = ""


@dataclass(frozen=True, slots=True)
class Slot:
    """GPUs that a launch would take: `parts` for its servers, `numbers` of all that must be idle beside it."""

    node: str
    parts: tuple[Part, ...]
    numbers: tuple[int, ...]
    evicts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of one role of a split layout: how many, GPUs of each, the quad they are pinned to."""

    role: str
    count: int
    gpus: int
    pin: str | None


class Shape(NamedTuple):
    """All of a launch that decides where it may run."""

    gpus: int
    pin: str | None = None
    quiet: bool = False
    preempt: bool = False
    roles: tuple[Servers, ...] = ()


@dataclass(slots=True)
class Machine:
    """The declared nodes. `held` is who holds a GPU for the whole plan, `taken` the ports of a node held likewise."""

    quads: tuple[Quad, ...]
    held: dict[int, str] = field(default_factory=dict)
    taken: dict[str, set[int]] = field(default_factory=dict)
    nodes: dict[str, list[Quad]] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = {}
        for quad in self.quads:
            self.nodes.setdefault(quad.node, []).append(quad)

    @property
    def size(self) -> int:
        """GPUs of all nodes."""
        return sum(len(quad.gpus) for quad in self.quads)


def machine_of(nodes: Mapping[str, Any]) -> Machine:
    """Return the machine that the `nodes` of a recipe declare, in declared order."""
    quads: list[Quad] = []
    first = 0
    for node, declared in nodes.items():
        for name, q in declared["quads"].items():
            quads.append(
                Quad(node, name, tuple(q["gpus"]), tuple(q.get("uuids") or ()), q.get("cpus"),
                     tuple(q.get("numa") or ()), (q["ports"][0], q["ports"][1]), first)
            )  # fmt: skip
            first += len(q["gpus"])
    return Machine(tuple(quads))


def shape_of(launch: Launch) -> Shape:
    """Return the shape of a launch."""
    return Shape(launch.gpus, launch.pin, launch.quiet, launch.preempt, servers(launch.layout, launch.behaviour))


def servers(layout: str, behaviour: Mapping[str, Any]) -> tuple[Servers, ...]:
    """Return the servers of a split layout with `roles` as a stack declares them; none for any other layout."""
    if not layout.startswith("pd_"):
        return ()
    parsed = parse_layout(layout)
    roles = behaviour.get("roles", {})
    return tuple(
        Servers(
            role, count, parse_layout(roles.get(role, {}).get("layout", "tp1")).gpus, roles.get(role, {}).get("quad")
        )
        for role, count in (("prefill", parsed.prefill), ("decode", parsed.decode))
    )


def slots(machine: Machine, shape: Shape) -> list[Slot]:
    """Return where a shape may run. Held GPUs are left alone; with `preempt` they are used when nothing else is."""
    free = [slot for slot in _candidates(machine, shape, machine.held) if machine.held.keys().isdisjoint(slot.numbers)]
    if free or not (shape.preempt and machine.held):
        return free
    return [
        Slot(slot.node, slot.parts, slot.numbers,
             tuple(dict.fromkeys(machine.held[n] for n in slot.numbers if n in machine.held)))
        for slot in _candidates(machine, shape, {})
    ]  # fmt: skip


def refusal(machine: Machine, shape: Shape, layout: str) -> tuple[str, str, str] | None:
    """Return code, sentence and hint when no node can hold a shape whatever else runs; None when one can."""
    if next(_candidates(machine, shape, {}), None) is not None:
        return None
    if shape.roles:
        return "roles-not-placed", _why_no_roles(machine, shape, layout), "pin the roles to two quads that hold them"
    total = max(sum(len(q.gpus) for q in quads) for quads in machine.nodes.values())
    if shape.gpus > total:
        return ("layout-too-large", f"layout {layout} needs {shape.gpus} GPUs, the largest node has {total}",
                "choose a smaller layout")  # fmt: skip
    names = sorted({quad.name for quad in machine.quads})
    if shape.pin not in names:
        return "pin-unknown", f"there is no quad {shape.pin}", f"quads: {', '.join(names)}"
    return ("pin-too-small", f"layout {layout} needs {shape.gpus} GPUs, more than quad {shape.pin} has",
            "drop `quad:` or choose a smaller layout")  # fmt: skip


def held_reason(machine: Machine, shape: Shape) -> str:
    """Return which serve entries keep a shape from every place where it could run."""
    by_entry: dict[str, set[str]] = {}
    for slot in _candidates(machine, shape, {}):
        for quad in machine.quads:
            for number in {*quad.numbers} & {*slot.numbers} & machine.held.keys():
                by_entry.setdefault(machine.held[number], set()).add(f"{quad.node}/{quad.name}")
    names = [f"serve entry {entry} holds {', '.join(sorted(where))}" for entry, where in sorted(by_entry.items())]
    return "; ".join(names) + "; an experiment evicts one only with `preempt: true`"


def placement(machine: Machine, slot: Slot, gpus: int, reason: str) -> Placement:
    """Return the placement that a slot gives to a launch of so many GPUs."""
    made = _join(machine, _narrowed(slot.parts, gpus), slot.node, reason)
    made.evicts = slot.evicts
    if slot.parts[0].role:
        _add_roles(machine, made, slot)
    return made


def reason(launch: Launch, slot: Slot) -> str:
    """Return why a launch runs in a slot."""
    first = slot.parts[0]
    names = dict.fromkeys(part.quad.name for part in slot.parts)
    if first.role:
        sides = [f"{role} on quad {'+'.join(dict.fromkeys(p.quad.name for p in slot.parts if p.role == role))}"
                 for role in dict.fromkeys(part.role for part in slot.parts)]  # fmt: skip
        text = f"{launch.layout}: {', '.join(sides)}, the router on the CPUs of quad {first.quad.name}"
    elif len(names) > 1:
        text = f"{launch.layout} needs {launch.gpus} GPUs: all quads of {slot.node}"
    else:
        whole = first.width == len(first.quad.gpus)
        fits = "fits a quad" if whole else f"takes {first.width} of the {len(first.quad.gpus)} GPUs of a quad"
        text = f"{launch.layout} {fits}; {f'pinned to quad {launch.pin}' if launch.pin else 'any'}"
    if launch.quiet:
        text += f"; quiet: the rest of {slot.node} stays idle"
    if slot.evicts:
        text += f"; preempts serve {', '.join(slot.evicts)}"
    return text


def _candidates(machine: Machine, shape: Shape, held: Mapping[int, str]) -> Iterator[Slot]:
    """Yield every slot that is large enough; `held` only steers which quads the roles of a split layout choose."""
    for node, quads in machine.nodes.items():
        whole = tuple(n for quad in quads for n in quad.numbers)
        if shape.roles:
            found: Iterator[Slot] = _split(node, quads, shape, held)
        else:
            found = _plain(node, quads, shape, whole)
        if shape.quiet:
            first = next(found, None)
            if first is not None:
                yield Slot(node, first.parts, whole)
        else:
            yield from found


def _plain(node: str, quads: Sequence[Quad], shape: Shape, whole: tuple[int, ...]) -> Iterator[Slot]:
    fitting = [q for q in quads if len(q.gpus) >= shape.gpus and shape.pin in (None, q.name)]
    for quad in fitting:
        if not quad.divisible:
            yield Slot(node, (Part(quad, 0, shape.gpus),), tuple(quad.numbers))
            continue
        for offset in range(0, len(quad.gpus) - shape.gpus + 1, shape.gpus):
            numbers = tuple(quad.numbers[offset : offset + shape.gpus])
            yield Slot(node, (Part(quad, offset, shape.gpus),), numbers)
    if not fitting and shape.pin is None and len(whole) >= shape.gpus:
        yield Slot(node, tuple(Part(q, 0, len(q.gpus)) for q in quads), whole)


def _split(node: str, quads: Sequence[Quad], shape: Shape, held: Mapping[int, str]) -> Iterator[Slot]:
    """Yield disjoint choices of quads: each role on quads of its own, whole quads are taken."""
    if shape.pin is not None:
        return
    left = [quad for quad in quads if held.keys().isdisjoint(quad.numbers)]
    while True:
        chosen: list[Part] = []
        for role in sorted(shape.roles, key=lambda one: one.pin is None):
            taken = {part.quad.name for part in chosen}
            parts = _role_parts([quad for quad in left if quad.name not in taken], role)
            if parts is None:
                return
            chosen += parts
        order = [role.role for role in shape.roles]
        chosen.sort(key=lambda part: order.index(part.role))
        used = list(dict.fromkeys(part.quad for part in chosen))
        yield Slot(node, tuple(chosen), tuple(n for quad in used for n in quad.numbers))
        left = [quad for quad in left if quad not in used]


def _role_parts(quads: Sequence[Quad], role: Servers) -> list[Part] | None:
    """Return the parts of all servers of a role on as few quads as hold them, the first ones that do."""
    parts: list[Part] = []
    for quad in quads:
        if role.pin not in (None, quad.name) or len(parts) == role.count:
            continue
        # One port of the quad is kept for the router.
        room = len(quad.gpus) // role.gpus if quad.ports[1] - quad.ports[0] >= len(quad.gpus) else 0
        parts += [Part(quad, i * role.gpus, role.gpus, role.role) for i in range(min(room, role.count - len(parts)))]
    return parts if len(parts) == role.count else None


def _why_no_roles(machine: Machine, shape: Shape, layout: str) -> str:
    if shape.pin is not None:
        return f"layout {layout} needs a quad for prefill and another for decode, the experiment pins quad {shape.pin}"
    names = {quad.name for quad in machine.quads}
    for role in shape.roles:
        if role.pin is not None and role.pin not in names:
            return f"there is no quad {role.pin} for the {role.role} servers of {layout}"
        if not any(_role_parts(quads, role) for quads in machine.nodes.values()):
            where = f"quad {role.pin}" if role.pin else "the quads of any node"
            return f"{role.count} {role.role} servers of {role.gpus} GPUs do not fit {where}"
    pins = [role.pin for role in shape.roles if role.pin]
    if len(pins) > len(set(pins)):
        return f"prefill and decode of {layout} are pinned to the same quad {pins[0]}"
    return f"no node has quads enough to put prefill and decode of {layout} on different ones"


def _narrowed(parts: Sequence[Part], gpus: int) -> tuple[Part, ...]:
    """Return the parts cut to the first `gpus` GPUs; quads that are kept idle beside them stay with no GPU."""
    made = []
    for part in parts:
        width = min(part.width, gpus)
        made.append(part._replace(width=width))
        gpus -= width
    return tuple(made)


def _join(machine: Machine, parts: Sequence[Part], node: str, reason: str) -> Placement:
    """Return one placement of all parts: their GPUs and CPUs, the ports of the first."""
    uuids = tuple(u for part in parts for u in part.quad.uuids[part.offset : part.offset + part.width])
    gpus = tuple(g for part in parts for g in part.quad.gpus[part.offset : part.offset + part.width])
    quads = dict.fromkeys(part.quad for part in parts)
    cpus = [_cpus(*parts[0][:3])] if len(parts) == 1 else [quad.cpus for quad in quads]
    ports = _ports(parts[0])
    return Placement(
        node, tuple(quad.name for quad in quads), gpus, uuids if len(uuids) == len(gpus) else (),
        ",".join(c for c in cpus if c) or None, tuple(dict.fromkeys(n for quad in quads for n in quad.numa)),
        _free_port(machine, node, ports), ports, reason,
    )  # fmt: skip


def _add_roles(machine: Machine, made: Placement, slot: Slot) -> None:
    """Add the placements of the servers and of the router, which has the first port of the first prefill quad."""
    front = slot.parts[0].quad
    router = _free_port(machine, slot.node, front.ports)
    numbers: dict[str, int] = {}
    several = {part.role for part in slot.parts if sum(p.role == part.role for p in slot.parts) > 1}
    for part in slot.parts:
        numbers[part.role] = numbers.get(part.role, 0) + 1
        name = f"{part.role}-{numbers[part.role]}" if part.role in several else part.role
        made.roles[name] = one = _join(machine, [part], slot.node, f"{part.role} on quad {part.quad.name}")
        if one.ports[0] <= router <= one.ports[1]:
            one.ports = (router + 1, one.ports[1])
            one.port = _free_port(machine, slot.node, one.ports)
    made.port, made.ports = router, (router, router)
    made.roles["router"] = Placement(slot.node, (front.name,), (), (), front.cpus, front.numa, router, (router, router),
                                     f"router on the CPUs of quad {front.name}")  # fmt: skip


def _ports(part: Part) -> tuple[int, int]:
    """Return the block of a part: the quad's, or as much of it as its GPUs are of the quad's."""
    first, last = part.quad.ports
    if part.width == len(part.quad.gpus) or not part.quad.divisible:
        return first, last
    share = (last - first + 1) // len(part.quad.gpus)
    return first + part.offset * share, first + (part.offset + part.width) * share - 1


def _free_port(machine: Machine, node: str, ports: tuple[int, int]) -> int:
    taken = machine.taken.get(node, set())
    return next((port for port in range(ports[0], ports[1] + 1) if port not in taken), ports[0])


@lru_cache(4096)
def _cpus(quad: Quad, offset: int, width: int) -> str | None:
    """Return the CPUs of a part. A share does not depend on the neighbours, so that measurements compare."""
    if not quad.cpus or width == len(quad.gpus):
        return quad.cpus
    from lcplan.node.cpulist import format_cpus, parse_cpus, split_cpus

    shares = split_cpus(parse_cpus(quad.cpus), len(quad.gpus))
    return format_cpus(frozenset().union(*shares[offset : offset + width])) or quad.cpus
