"""`lcplan state orphans`: labelled servers without a live owner."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lcplan.cli.options import DEFAULT_STATE, AsJson, State, Wait, Yes
from lcplan.cli.output import show, show_json

Remove = Annotated[bool, typer.Option("--remove", help="End those whose owner is gone.")]


def show_orphans(
    remove: Remove = False, yes: Yes = False, wait: Wait = False, as_json: AsJson = False, state: State = DEFAULT_STATE
) -> int:
    """List containers and processes with lcplan's labels that no live owner accounts for."""
    from lcplan.apply import orphans
    from lcplan.apply.events import quiet
    from lcplan.view.orphans import orphans_text

    found = orphans.orphans()
    gone = sum(one.owner == "gone" for one in found)
    if remove and gone and not yes and sys.stdin.isatty() and not typer.confirm(f"End {gone} servers?"):
        return 1
    removed = orphans.remove(state, found, wait, quiet) if remove else []
    if as_json:
        show_json([{**one.as_json(), "removed": one in removed} for one in found])
    else:
        show(orphans_text(found, removed))
    return 0
