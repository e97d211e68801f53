"""`lcplan runs`: what is recorded."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lcplan.base.diagnostics import fail
from lcplan.cli.options import DEFAULT_STATE, AsJson, State, Wait
from lcplan.cli.output import show, show_errors, show_json

Selectors = Annotated[
    list[str] | None, typer.Argument(metavar="[SELECTOR]...", help="key=glob[,key=glob...]; a union.")
]
Run = Annotated[str, typer.Argument(metavar="RUN", help="A run id.")]
Why = Annotated[str, typer.Option("--why", help="The reason, kept in the ledger.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
Bundle = Annotated[Path, typer.Option("-o", "--output", metavar="DIR|FILE.tar", help="Where the bundle goes.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to a file.")]


class Format(StrEnum):
    """Formats of an export."""

    CSV = "csv"
    PARQUET = "parquet"
    INTOTO = "intoto"
    CRATE = "ro-crate"


def register(app: typer.Typer) -> None:
    """Add the commands `runs list`, `show`, `diff`, `compare`, `retract`, `invalid`, `bundle` and `export`."""
    group = typer.Typer(help="Recorded runs.", no_args_is_help=True)
    group.command("list", help="List runs with their status and standing.")(_list)
    group.command("show", help="Show one run with its cells and figures.")(_show)
    group.command("diff", help="Say in words what differs between two runs.")(_diff)
    group.command("compare", help="Say whether two groups of repeats differ by more than chance.")(_compare)
    group.command("retract", help="Note that a run's numbers do not hold; nothing is deleted.")(_retract)
    group.command("invalid", help="List every cell that is no result, with its reason.")(_invalid)
    group.command("bundle", help="Write a run with all that another team needs to verify and replay it.")(_bundle)
    group.command("export", help="Export all numbers: simulated, invalid and provisional ones are named as such.")(
        _export
    )
    app.add_typer(group, name="runs")


def _list(selectors: Selectors = None, state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    from lcplan.audit.listing import list_runs
    from lcplan.view.runs import list_text

    runs, damaged = list_runs(state, selectors or ())
    if as_json:
        show_json([run.as_json() for run in runs])
    else:
        show(list_text(runs))
    show_errors(damaged)
    if damaged:
        raise typer.Exit(1)


def _show(run: Run, state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    from lcplan.audit.listing import show_run
    from lcplan.view.runs import show_text

    found = show_run(state, run)
    if as_json:
        show_json(found.as_json())
    else:
        show(show_text(found))


def _diff(
    a: Annotated[str, typer.Argument(metavar="A")],
    b: Annotated[str, typer.Argument(metavar="B")],
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    from lcplan.audit.diff import diff
    from lcplan.view.runs import diff_text

    found = diff(state, a, b)
    if as_json:
        show_json({"a": a, "b": b, "differences": [difference.as_json() for difference in found]})
    else:
        show(diff_text(a, b, found))


def _compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A run, or a selector of repeats of one launch.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    from lcplan.audit.compare import compare
    from lcplan.view.compare import compare_text

    made = compare(state, a, b)
    if as_json:
        show_json(made.as_json())
    else:
        show(compare_text(made))


def _retract(run: Run, why: Why, state: State = DEFAULT_STATE, wait: Wait = False) -> None:
    from lcplan.audit.listing import retract
    from lcplan.record.lock import hold
    from lcplan.record.state import existing

    with hold(existing(state), "lcplan runs retract", wait):
        retract(state, run, why)
    show(f"retracted {run}; its cells are planned again")


def _invalid(
    selectors: Selectors = None, csv: Csv = False, state: State = DEFAULT_STATE, as_json: AsJson = False
) -> None:
    from lcplan.audit.listing import invalid_rows
    from lcplan.view.runs import invalid_csv, invalid_text

    rows = invalid_rows(state, selectors or ())
    if as_json:
        show_json(rows)
    else:
        show(invalid_csv(rows) if csv else invalid_text(rows))


def _bundle(run: Run, output: Bundle, state: State = DEFAULT_STATE) -> None:
    from lcplan.audit.bundle import bundle
    from lcplan.view.runs import bundled_text

    show(bundled_text(bundle(state, run, output)))


def _export(
    selectors: Selectors = None,
    form: Annotated[Format, typer.Option("--format", help="How they are written.")] = Format.CSV,
    output: Output = None,
    state: State = DEFAULT_STATE,
) -> None:
    from lcplan.audit import export
    from lcplan.base.files import write_atomic
    from lcplan.record.state import existing

    chosen = selectors or ()
    if form is Format.CRATE:
        output = export.to_crate(existing(state), output or state, chosen)
    elif form is Format.PARQUET:
        if output is None:
            raise fail("no-output", "parquet is written to a file", "name it with -o")
        export.to_parquet(export.rows(existing(state), chosen), output)
    else:
        csv = form is Format.CSV
        text = export.to_csv(export.rows(existing(state), chosen)) if csv else export.to_intoto(existing(state), chosen)
        if output is None:
            show(text)
        else:
            write_atomic(output, text)
    if output is not None:
        show(f"wrote {output}")
