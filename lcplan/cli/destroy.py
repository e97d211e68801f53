"""`lcplan destroy`: end what this lineage runs."""

from __future__ import annotations

import sys

import typer

from lcplan.cli.options import DEFAULT_STATE, AsJson, State, Wait, Yes
from lcplan.cli.output import show, show_json


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def destroy(yes: Yes = False, wait: Wait = False, as_json: AsJson = False, state: State = DEFAULT_STATE) -> int:
        """End every server that carries this lineage's labels; records stay."""
        from lcplan.apply.events import quiet
        from lcplan.apply.run import destroy as run

        if not yes and sys.stdin.isatty() and not typer.confirm("End all servers of this lineage?"):
            return 1
        ended = run(state, wait, quiet)
        if as_json:
            show_json({"ended": ended})
        else:
            show("\n".join(f"ended {one}" for one in ended) or "nothing of this lineage runs")
        return 0
