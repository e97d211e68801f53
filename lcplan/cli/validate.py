"""`lcplan validate`: everything that can be known to be wrong before planning."""

from __future__ import annotations

import typer

from lcplan.cli.options import DEFAULT_RECIPES, DEFAULT_STATE, AsJson, Recipes, State, Var
from lcplan.cli.output import show, show_errors, show_json, variables


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def validate(
        paths: Recipes = DEFAULT_RECIPES, var: Var = None, as_json: AsJson = False, state: State = DEFAULT_STATE
    ) -> int:
        """Check recipes: syntax, names, flags, lengths, layouts."""
        from lcplan.apply.prepare import make_plan
        from lcplan.base.diagnostics import LcplanError
        from lcplan.view.validate import validated

        try:
            plan, found = make_plan(paths, state, variables=variables(var), thorough=True)
        except LcplanError as problem:
            if not as_json:
                raise
            show_json({"valid": False, "diagnostics": [d.as_json() for d in problem.diagnostics]})
            return 1
        if as_json:
            show_json({"valid": True, "diagnostics": [d.as_json() for d in found], **validated(plan)})
        else:
            show_errors(found)
            counts = validated(plan)
            warnings = sum(one.severity == "warning" for one in found)
            show(f"valid: {counts['cells']} cells in {counts['launches']} launches, {warnings} warnings")
        return 0
