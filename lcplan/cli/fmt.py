"""`lcplan fmt`: recipe files in canonical form."""

from __future__ import annotations

from typing import Annotated

import typer

from lcplan.cli.options import DEFAULT_RECIPES, AsJson, Recipes
from lcplan.cli.output import show, show_json


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def fmt(
        paths: Recipes = DEFAULT_RECIPES,
        check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 when something differs.")] = False,
        as_json: AsJson = False,
    ) -> int:
        """Rewrite recipe files in canonical form; comments and quotes stay."""
        from lcplan.base.files import write_atomic
        from lcplan.recipe.fmt import formatted
        from lcplan.recipe.load import recipe_files

        changed = []
        for name, path in recipe_files(paths).items():
            raw = path.read_bytes()
            made = formatted(raw, name)
            if made.encode() != raw:
                changed.append(name)
                if not check:
                    write_atomic(path, made)
        if as_json:
            show_json({"changed": changed, "written": not check})
        else:
            show("\n".join(f"{'differs' if check else 'rewritten'}: {name}" for name in changed) or "nothing to change")
        return 1 if check and changed else 0
