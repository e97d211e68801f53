"""Declared nodes checked: each finding stands at the quad that brings it in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lcplan.base.diagnostics import Diagnostic, error
from lcplan.node.declared import check_node
from lcplan.recipe.yamltree import Key, Tree

_FIELD = {
    "gpu-unknown": "gpus",
    "quads-overlap": "gpus",
    "ports-malformed": "ports",
    "ports-overlap": "ports",
    "malformed-cpu-list": "cpus",
    "cpus-overlap": "cpus",
}
"""Which key of a quad a finding is about."""


def check_nodes(nodes: Mapping[str, Mapping[str, Any]], tree: Tree) -> Iterator[Diagnostic]:
    """Yield what is wrong with the quads and islands of declared nodes."""
    for name, node in nodes.items():
        path: Key = ("nodes", name)
        if not node["quads"]:
            yield error("no-quads", f"node {name} has no quads, so nothing can run on it", "declare one over all GPUs",
                        tree.key_place((*path, "quads")))  # fmt: skip
        yield from _quads(node, path, tree)
        yield from _islands(node, path, tree)


def _quads(node: Mapping[str, Any], path: Key, tree: Tree) -> Iterator[Diagnostic]:
    """Yield what each quad adds to the findings about those before it."""
    before: set[Diagnostic] = set()
    some: dict[str, Any] = {}
    owner: dict[str, str] = {}
    for name, quad in node["quads"].items():
        here: Key = (*path, "quads", name)
        some[name] = {**quad, "ports": f"{quad['ports'][0]}-{quad['ports'][1]}"}
        found = [one for one in check_node({**node, "quads": some}) if one not in before]
        before |= set(found)
        for one in found:
            place = tree.place((*here, _FIELD[one.code])) if one.code in _FIELD else tree.key_place(here)
            yield Diagnostic(one.severity, one.code, one.message, one.hint, place)
        if not quad["gpus"]:
            yield error("gpu-unknown", f"quad {name} holds no GPU", "", tree.place((*here, "gpus")))
        uuids = quad.get("uuids") or []
        if uuids and len(uuids) != len(quad["gpus"]):
            yield error("uuids-differ", f"quad {name} has {len(quad['gpus'])} GPUs and {len(uuids)} UUIDs",
                        "give one UUID for each GPU, in the same order", tree.place((*here, "uuids")))  # fmt: skip
        for i, uuid in enumerate(uuids):
            if owner.setdefault(uuid, name) != name or uuids.index(uuid) != i:
                yield error("quads-overlap", f"UUID {uuid} stands twice, in quads {owner[uuid]} and {name}", "",
                            tree.place((*here, "uuids", i)))  # fmt: skip


def _islands(node: Mapping[str, Any], path: Key, tree: Tree) -> Iterator[Diagnostic]:
    count = node["gpu"]["count"]
    seen: set[int] = set()
    for i, island in enumerate(node.get("islands") or ()):
        for k, gpu in enumerate(island):
            place = tree.place((*path, "islands", i, k))
            if gpu >= count:
                yield error("gpu-unknown", f"an island holds GPU {gpu}, the node has {count} GPUs",
                            f"indices run from 0 to {count - 1}", place)  # fmt: skip
            elif gpu in seen:
                yield error("islands-overlap", f"GPU {gpu} stands twice in the islands", "", place)
            seen.add(gpu)
