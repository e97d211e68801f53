"""Tensor parallelism that leaves an NVLink island or a socket, by the topology of the node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any

from lcplan.base.diagnostics import Diagnostic, warning
from lcplan.base.layout import parse_layout
from lcplan.node.model import Gpu, Topology, crossings
from lcplan.plan.model import Launch, Placement
from lcplan.recipe.load import Recipes


def crossing_warnings(recipes: Recipes, launches: Iterable[Launch], known: Mapping[str, Topology]) -> list[Diagnostic]:
    """Return a warning for every stack whose tensor-parallel groups cross, naming the pairs of GPUs.

    `known` are topologies by node; a node without one is judged by its declared `islands`, or not at all.
    """
    topologies = {name: known.get(name) or _declared(node) for name, node in recipes.data["nodes"].items()}
    found: dict[tuple[str, str, tuple[str, ...]], Diagnostic] = {}
    pairs_of: dict[tuple[str, str, tuple[int, ...]], list[str]] = {}
    for launch in launches:
        if launch.placement is None or topologies[launch.placement.node] is None:
            continue
        for role, placed, layout in _servers(launch):
            where = placed.node, layout, placed.gpus
            if where not in pairs_of:
                pairs_of[where] = _pairs(topologies[placed.node], placed, layout)
            pairs = pairs_of[where]
            key = (launch.stack, layout, tuple(pairs))
            if pairs and key not in found:
                what = f"{launch.id}{f' ({role})' if role else ''}: tensor parallelism of {layout} on {placed.node}"
                found[key] = warning("tensor-parallel-crosses", f"{what} crosses {', '.join(pairs)}",
                                     "choose a layout that stays in an island, or pipeline parallelism between them",
                                     recipes.place("stacks", launch.stack, "layout"))  # fmt: skip
    return list(found.values())


def _servers(launch: Launch) -> list[tuple[str, Placement, str]]:
    """Return role, placement and layout of every server of a launch that has GPUs."""
    assert launch.placement is not None
    if not launch.placement.roles:
        return [("", launch.placement, launch.layout)]
    roles = launch.behaviour.get("roles", {})
    return [(name, one, roles.get(name.split("-")[0], {}).get("layout", "tp1"))
            for name, one in sorted(launch.placement.roles.items()) if one.gpus]  # fmt: skip


def _pairs(topology: Topology | None, placed: Placement, layout: str) -> list[str]:
    """Return the pairs of each tensor-parallel group: `tp` GPUs that follow each other."""
    size = parse_layout(layout).tp
    groups = [placed.gpus[at : at + size] for at in range(0, len(placed.gpus), size)]
    return [pair for group in groups for pair in crossings(topology, group)]


def _declared(node: Mapping[str, Any]) -> Topology | None:
    """Return the topology that a node's `islands` and quads mean, or None when it declares none."""
    islands = node.get("islands")
    if not islands:
        return None
    numa = {gpu: tuple(quad.get("numa") or ()) for quad in node["quads"].values() for gpu in quad["gpus"]}
    links = {pair: "NV" for island in islands for pair in combinations(sorted(island), 2)}
    gpus = tuple(Gpu(index, numa=numa.get(index, ())) for index in range(node["gpu"]["count"]))
    return Topology(len(gpus), gpus, links)
