"""`lcplan init`: a folder of recipes to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lcplan.cli.output import show


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def init(folder: Annotated[Path, typer.Argument(metavar="FOLDER")] = Path("recipes")) -> None:
        """Write a small campaign to start from; existing files are never touched."""
        from lcplan.base.diagnostics import Source, fail
        from lcplan.base.files import write_atomic
        from lcplan.recipe.starter import starter

        target = folder / "campaign.yaml"
        if folder.is_dir() and any(folder.glob("*.yaml")):
            raise fail("not-empty", "the folder holds recipes already", "choose another folder", Source(str(folder)))
        write_atomic(target, starter(8000))
        show(f"wrote {target}; next: lcplan plan {folder} --runtime sim")
