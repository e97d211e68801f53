"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Recipes = Annotated[list[Path], typer.Argument(metavar="[RECIPES]...", help="Folders or files of recipes.")]
State = Annotated[Path, typer.Option("--state", metavar="DIR", help="The state directory.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Var = Annotated[list[str] | None, typer.Option("--var", metavar="NAME=VALUE", help="Set a declared variable.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the lock instead of leaving.")]
DEFAULT_STATE = Path("state")
DEFAULT_RECIPES = [Path("recipes")]
