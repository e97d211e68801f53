"""The operation graph of a plan in the languages of graph viewers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from lcplan.plan.model import Plan


def edges(plan: Plan, launches: bool) -> dict[str, tuple[str, ...]]:
    """Return node -> the nodes before it: operations, or launches only."""
    if launches:
        return {one.id: one.after for one in plan.launches if one.placement}
    return {o.id: o.after for o in plan.operations}


def graph_text(graph: Mapping[str, Sequence[str]], form: str) -> str:
    """Return the graph as DOT or Mermaid."""
    pairs = [(before, node) for node, some in graph.items() for before in some]
    if form == "mermaid":
        number = {node: f"n{i}" for i, node in enumerate(graph)}
        lines = [f'  {number[node]}["{node}"]' for node in graph]
        return "\n".join(["flowchart TD", *lines, *[f"  {number[a]} --> {number[b]}" for a, b in pairs if a in number]])
    lines = [f"  {json.dumps(node)};" for node in graph]
    return "\n".join(["digraph plan {", *lines, *[f"  {json.dumps(a)} -> {json.dumps(b)};" for a, b in pairs], "}"])
