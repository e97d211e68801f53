"""The same campaign on another machine: its nodes replaced by those of a file, or by what tools said of a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lcplan.base.canonical import digest
from lcplan.base.diagnostics import LcplanError, Source, fail, has_errors
from lcplan.recipe.load import Recipes, load

if TYPE_CHECKING:
    from lcplan.node.model import Topology


@dataclass(frozen=True)
class Elsewhere:
    """A campaign for other nodes: `what` says which, "" when they are the campaign's own; topologies by node."""

    recipes: Recipes
    what: str
    topologies: Mapping[str, Topology] = field(default_factory=dict)


def on_declared(recipes: Recipes, node: Path) -> Elsewhere:
    """Return a campaign on the nodes of a recipe file. Raises LcplanError when the file is bad or declares none."""
    other = load([node])
    if not other.data["nodes"]:
        raise fail("no-node", "the file declares no node", "give a file with `nodes:`", Source(str(node)))
    places = {key: place for key, place in recipes.places.items() if key[:1] != ("nodes",)}
    places |= {key: place for key, place in other.places.items() if key[:1] == ("nodes",)}
    made = replace(recipes, data={**recipes.data, "nodes": other.data["nodes"]}, places=places,
                   diagnostics=[*recipes.diagnostics, *other.diagnostics])  # fmt: skip
    return Elsewhere(made, _what(recipes, made, str(node)))


def on_observed(recipes: Recipes, files: Sequence[str]) -> Elsewhere:
    """Return a campaign on the machine that saved outputs of tools show.

    Model and memory of the GPUs, and the runtime, are those of the campaign's first node where the outputs do not say
    them. Raises LcplanError for outputs that contradict each other or show no GPUs.
    """
    from lcplan.node.declared import parse_ports
    from lcplan.node.detect import observe
    from lcplan.node.nodefile import declaration, safe_name
    from lcplan.node.quads import propose_quads

    topology = observe(files)
    if has_errors(topology.diagnostics):
        raise LcplanError(*(one for one in topology.diagnostics if one.severity == "error"))
    seen = declaration(topology, propose_quads(topology))
    if not seen["quads"]:
        raise fail("no-gpus", "the tables show no GPUs to plan for", "give a whole `nvidia-smi topo -m`",
                   Source(", ".join(files)))  # fmt: skip
    own: Mapping[str, Any] = next(iter(recipes.data["nodes"].values()), {})
    gpu = {
        "model": seen["gpu"]["model"] or own.get("gpu", {}).get("model"),
        "memory": seen["gpu"]["memory_gib"] or own.get("gpu", {}).get("memory"),
        "count": seen["gpu"]["count"],
    }
    if not gpu["model"] or not gpu["memory"]:
        hint = "give `nvidia-smi --query-gpu=index,uuid,name,memory.total,pci.bus_id --format=csv` too"
        raise fail("no-gpu-model", "neither the tables nor the campaign say model and memory of the GPUs", hint)
    quads = {}
    for name, quad in seen["quads"].items():
        ports = parse_ports(quad["ports"])
        known = {key: value for key, value in quad.items() if value}
        quads[name] = {**known, "ports": (ports.start, ports.stop - 1)}
    node = {"gpu": gpu, "quads": quads} | ({"runtime": own["runtime"]} if own.get("runtime") else {})
    name = safe_name(Path(files[0]).name)
    places = {key: place for key, place in recipes.places.items() if key[:1] != ("nodes",)}
    made = replace(recipes, data={**recipes.data, "nodes": {name: node}}, places=places,
                   diagnostics=[*recipes.diagnostics, *topology.diagnostics])  # fmt: skip
    return Elsewhere(made, _what(recipes, made, ", ".join(files)), {name: topology})


def _what(recipes: Recipes, made: Recipes, files: str) -> str:
    """Return which machine it is, or "" when it is the campaign's own."""
    if digest(made.data["nodes"]) == digest(recipes.data["nodes"]):
        return ""
    shown = [f"{name}, {node['gpu']['count']} x {node['gpu']['model']}" for name, node in made.data["nodes"].items()]
    return f"{'; '.join(shown)} (from {files})"
