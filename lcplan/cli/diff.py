"""`lcplan diff A B` (also `lcplan plan diff A B`): what differs between two plans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lcplan.cli.options import AsJson
from lcplan.cli.output import show, show_json


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def diff(
        a: Annotated[Path, typer.Argument(metavar="A")],
        b: Annotated[Path, typer.Argument(metavar="B")],
        as_json: AsJson = False,
    ) -> None:
        """Compare two plan files: cells and launches that came, went or changed, and totals."""
        from lcplan.apply.prepare import read_plan
        from lcplan.plan.diff import difference
        from lcplan.view.plan_diff import diff_text

        found = difference(read_plan(a)[0], read_plan(b)[0])
        if as_json:
            show_json(found)
        else:
            show(diff_text(found))
