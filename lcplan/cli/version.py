"""`lcplan version`; answered by lcplan.__main__ already, here for the help."""

from __future__ import annotations

import typer

from lcplan import __version__
from lcplan.cli.options import AsJson
from lcplan.cli.output import show, show_json


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def version(as_json: AsJson = False) -> None:
        """Print the version."""
        if as_json:
            show_json({"version": __version__})
        else:
            show(f"lcplan {__version__}")
