"""`lcplan engine catalog`: the flag table of an engine version."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(engine_app: typer.Typer) -> None:
    """Add `catalog` to the `engine` commands."""
    engine_app.command("catalog")(_catalog)


def _catalog(
    package: Annotated[str, typer.Argument(help="An engine's package, e.g. vllm==0.32.0 or sglang==0.5.21.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the table to this file.")] = None,
) -> None:
    """Make the flag table of an engine version from its package's source; nothing of it is run."""
    from lcplan.base.files import write_atomic
    from lcplan.cli.output import show, show_errors
    from lcplan.engine import catalog_tool

    table, problems = catalog_tool.make(package)
    show_errors(problems)
    if output is None:
        show(catalog_tool.text(table))
    else:
        write_atomic(output, catalog_tool.text(table))
        show(f"{output}: {table['count']} flags of {table['engine']} {table['version']}")
