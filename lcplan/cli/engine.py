"""`lcplan engine`: what engines say and understand."""

from __future__ import annotations

import typer

from lcplan.cli import engine_catalog, engine_parse


def register(app: typer.Typer) -> None:
    """Add the commands `engine parse` and `engine catalog`."""
    engine_parse.register(app)
    group = app.registered_groups[-1].typer_instance
    assert group is not None
    engine_catalog.register(group)
