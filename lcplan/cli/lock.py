"""`lcplan lock`: pin the engines' images to what their tags mean now."""

from __future__ import annotations

import typer

from lcplan.cli.options import DEFAULT_RECIPES, AsJson, Recipes, Var
from lcplan.cli.output import show, show_json, variables


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def lock(paths: Recipes = DEFAULT_RECIPES, var: Var = None, as_json: AsJson = False) -> None:
        """Write the digests of the engines' images to lcplan.lock.json beside the recipes; plans use them."""
        from lcplan.apply.lock_images import lock_images
        from lcplan.view.lock import locked_text

        made = lock_images(paths, variables(var))
        if as_json:
            show_json(made.as_json())
        else:
            show(locked_text(made))
