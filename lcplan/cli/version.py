"""`lcplan version`; answered by lcplan.__main__ already, here for the help."""

from __future__ import annotations

import typer

from lcplan import __version__
from lcplan.cli.output import show


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def version() -> None:
        """Print the version."""
        show(f"lcplan {__version__}")
