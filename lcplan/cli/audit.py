"""`lcplan audit`: which cmd.sh produced a number, and is everything as it was sealed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from lcplan.base.diagnostics import Source, fail
from lcplan.cli.options import DEFAULT_STATE, AsJson, State
from lcplan.cli.output import show, show_errors, show_json

Query = Annotated[str, typer.Argument(metavar="NUMBER|RUN[/CELL[#METRIC]]", help='For example "58.6 s".')]
Limit = Annotated[int, typer.Option("--limit", min=1, help="How many chains are shown.")]
Runs = Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="Only these runs.")]
Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Markdown files.")]
Strict = Annotated[bool, typer.Option("--strict", help="Numbers that lead to no record are errors.")]
Simulated = Annotated[bool, typer.Option("--allow-simulated", help="Let simulated numbers pass.")]
Fix = Annotated[bool, typer.Option("--fix", help="Write the right values in place of wrong ones.")]
PlanFile = Annotated[Path, typer.Argument(metavar="[PLAN]", help="A plan file.")]
Rehearsed = Annotated[bool, typer.Option("--simulated", help="Count simulated records.")]


def register(app: typer.Typer) -> None:
    """Add the commands `audit verify`, `why`, `doc` and `coverage`."""
    group = typer.Typer(help="Look up, verify and check published numbers.", no_args_is_help=True)
    group.command("verify", help="Hash everything again; name what changed, is missing or does not belong.")(_verify)
    group.command("why", help="Print the chain from a number, a run, a cell or a metric to its cmd.sh.")(_why)
    group.command("doc", help="Check every number, table and quotation that links to a record.")(_doc)
    group.command("coverage", help="List every planned cell and its fate.")(_coverage)
    app.add_typer(group, name="audit")


def _verify(runs: Runs = None, state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    from lcplan.audit.verify import verify
    from lcplan.view.audit import verified_text

    done = verify(state, runs or ())
    if as_json:
        show_json(done.as_json())
    else:
        show_errors(done.findings)
        show(verified_text(done))
    if done.findings:
        raise typer.Exit(1)


def _why(query: Query, limit: Limit = 10, state: State = DEFAULT_STATE, as_json: AsJson = False) -> None:
    from lcplan.audit.why import why
    from lcplan.view.audit import why_text

    answer = why(state, query, limit)
    if as_json:
        show_json(answer.as_json())
    elif answer.chains:
        show(why_text(answer))
    if not answer.chains:
        raise fail("no-such-number", f"no recorded value rounds to {query}", "write the unit too, or name a run")


def _doc(
    files: Files,
    strict: Strict = False,
    allow_simulated: Simulated = False,
    fix: Fix = False,
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    from lcplan.audit.doc import Options, doc
    from lcplan.view.audit import checked_text

    checked = doc(state, files, Options(strict, allow_simulated, fix))
    if as_json:
        show_json(checked.as_json())
    else:
        show_errors(checked.findings)
        show(checked_text(checked))
    if checked.findings:
        raise typer.Exit(1)


def _coverage(
    plan: PlanFile = Path("plans/plan.json"),
    simulated: Rehearsed = False,
    state: State = DEFAULT_STATE,
    as_json: AsJson = False,
) -> None:
    from lcplan.audit.coverage import coverage
    from lcplan.view.audit import coverage_text

    found = coverage(state, read_plan_file(plan), simulated or None)
    show_errors(found.warnings)
    if as_json:
        show_json(found.as_json())
    else:
        show(coverage_text(found))


def read_plan_file(file: Path) -> dict[str, Any]:
    """Return the content of a plan file. Raises LcplanError `file-unreadable`, `not-a-plan`."""
    try:
        content = json.loads(file.read_bytes())
        if not all(isinstance(cell["fingerprint"], str) for cell in content["cells"]):
            raise TypeError
    except OSError as reason:
        raise fail("file-unreadable", f"{file} cannot be read: {reason.strerror}", "name a plan file") from None
    except (ValueError, TypeError, KeyError):
        raise fail("not-a-plan", "the file is no lcplan plan", "plan again", Source(str(file))) from None
    return dict(content)
