"""`lcplan show PLAN`: a plan file as text, Markdown or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lcplan.cli.options import AsJson
from lcplan.cli.output import show as write
from lcplan.cli.plan import Format


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def show(
        plan: Annotated[Path, typer.Argument(metavar="PLAN")] = Path("plans/plan.json"),
        form: Annotated[Format, typer.Option("--format", help="How it is shown.")] = Format.TEXT,
        as_json: AsJson = False,
    ) -> None:
        """Show a plan file."""
        from lcplan.apply.prepare import read_plan
        from lcplan.plan import file
        from lcplan.view.plan import plan_markdown, plan_text

        made, plan_id = read_plan(plan)
        if as_json or form is Format.JSON:
            write(file.text(made))
        else:
            write(plan_markdown(made, plan_id) if form is Format.MD else plan_text(made, plan_id))
