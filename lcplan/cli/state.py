"""`lcplan state`: the index of what is recorded."""

from __future__ import annotations

import typer

from lcplan.cli.options import DEFAULT_STATE, AsJson, State, Wait
from lcplan.cli.output import show, show_errors, show_json
from lcplan.cli.state_orphans import show_orphans


def register(app: typer.Typer) -> None:
    """Add the commands `state show`, `state rebuild` and `state orphans`."""
    group = typer.Typer(help="The state of the campaign.", no_args_is_help=True)
    group.command("show", help="Show lineage, serials, counts and serve entries.")(_show)
    group.command("rebuild", help="Tell the state again from manifests and ledger, and write it.")(_rebuild)
    group.command("orphans", help="List labelled servers without a live owner; --remove ends them.")(show_orphans)
    app.add_typer(group, name="state")


def _show(state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    from lcplan.record.state import load
    from lcplan.view.state import state_json, state_text

    found, warnings = load(state)
    show_errors(warnings)
    if as_json:
        show_json(state_json(found) if found else None)
    else:
        show(state_text(found))


def _rebuild(state: State = DEFAULT_STATE, wait: Wait = False) -> None:
    from lcplan.audit.listing import restate
    from lcplan.record.lock import hold
    from lcplan.record.state import existing
    from lcplan.view.state import state_text

    with hold(existing(state), "lcplan state rebuild", wait):
        found, warnings = restate(state)
    show_errors(warnings)
    show(state_text(found))
