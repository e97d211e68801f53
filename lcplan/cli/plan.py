"""`lcplan plan`: what an apply would do, and why."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lcplan.cli.options import DEFAULT_RECIPES, DEFAULT_STATE, AsJson, Recipes, State, Var
from lcplan.cli.output import show, show_errors, variables

Select = Annotated[list[str] | None, typer.Option(metavar="KEY=GLOB[,...]", help="Select cells; several are a union.")]


class Format(StrEnum):
    """How a plan is shown."""

    TEXT = "text"
    MD = "md"
    JSON = "json"


class Runtime(StrEnum):
    """Runtimes that a plan may be made for instead of the recipe's own."""

    PROCESS = "process"
    DOCKER = "docker"
    SLURM = "slurm"
    SIM = "sim"


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def plan(
        paths: Recipes = DEFAULT_RECIPES,
        output: Annotated[
            Path | None, typer.Option("-o", "--output", metavar="FILE", help="Where the plan goes.")
        ] = None,
        form: Annotated[Format, typer.Option("--format", help="How it is shown.")] = Format.TEXT,
        as_json: AsJson = False,
        runtime: Annotated[Runtime | None, typer.Option(help="Plan for this runtime instead of the recipe's.")] = None,
        target: Select = None,
        exclude: Select = None,
        replace: Select = None,
        budget: Annotated[
            str | None, typer.Option(metavar="TIME", help="Plan what fits into this time (6h, 90min), by priority.")
        ] = None,
        node: Annotated[
            Path | None,
            typer.Option(metavar="FILE", help="What if: plan for the nodes that this recipe file declares."),
        ] = None,
        tables: Annotated[
            list[str] | None,
            typer.Option("--from", metavar="FILE", help="What if: plan for the machine of saved tool outputs."),
        ] = None,
        var: Var = None,
        state: State = DEFAULT_STATE,
        detailed_exitcode: Annotated[
            bool, typer.Option("--detailed-exitcode", help="Exit with 2 when there are changes.")
        ] = False,
    ) -> int:
        """Plan recipes: expand, place, schedule, compare with what is recorded. `plan diff A B` compares two plans."""
        from lcplan.apply.prepare import make_plan
        from lcplan.plan import file
        from lcplan.plan.policy import violations

        if node is not None and tables:
            raise typer.BadParameter("give --node or --from, not both")
        made, found = make_plan(
            paths,
            state,
            variables=variables(var),
            runtime=runtime.value if runtime else None,
            target=target or (),
            exclude=exclude or (),
            replace=replace or (),
            budget=budget,
            node=node,
            tables=tables or (),
        )
        where = output or (Path("plans/plan.json") if made.changes and "what_if" not in made.summary else None)
        content = file.as_json(made) if made.changes or where or as_json or form is Format.JSON else None
        if where is not None and content is not None:
            from lcplan.base.files import write_atomic

            write_atomic(where, file.render_json(content))
        if as_json or form is Format.JSON:
            show(file.render_json(content or {}))
        else:
            from lcplan.view.plan import plan_markdown, plan_text

            show_errors(d for d in found if form is Format.TEXT)
            name = str(content["id"]) if content else ""
            show(plan_markdown(made, name) if form is Format.MD else plan_text(made, name))
            if where is not None:
                show_where(where, form, "what_if" in made.summary)
        broken = violations(made)
        show_errors(broken)
        return 1 if broken else 2 if detailed_exitcode and made.changes else 0


def show_where(where: Path, form: Format, what_if: bool) -> None:
    """Say where the plan was written and what to do with it (not inside Markdown, which is a comment's text)."""
    if form is Format.TEXT:
        use = "a what-if: no apply accepts it" if what_if else f"`lcplan apply {where}` does exactly this"
        show(f"\nwrote {where}; {use}")
