"""`lcplan graph PLAN`: the operations of a plan and what waits for what."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lcplan.cli.options import AsJson
from lcplan.cli.output import show, show_json


class Format(StrEnum):
    """Formats of a graph."""

    DOT = "dot"
    MERMAID = "mermaid"


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def graph(
        plan: Annotated[Path, typer.Argument(metavar="PLAN")] = Path("plans/plan.json"),
        form: Annotated[Format, typer.Option("--format", help="DOT for graphviz, or Mermaid.")] = Format.DOT,
        launches: Annotated[bool, typer.Option("--launches", help="One node per launch, not per operation.")] = False,
        as_json: AsJson = False,
    ) -> None:
        """Print the operation graph of a plan."""
        from lcplan.apply.prepare import read_plan
        from lcplan.view.graph import edges, graph_text

        made, _ = read_plan(plan)
        found = edges(made, launches)
        if as_json:
            show_json({"nodes": list(found), "edges": [[a, b] for b, before in found.items() for a in before]})
        else:
            show(graph_text(found, form.value))
