"""`lcplan import`: a launch command, compose service, Kubernetes container or running container -> a recipe."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lcplan.base.diagnostics import Diagnostic, LcplanError, error, fail, has_errors
from lcplan.base.files import write_atomic
from lcplan.cli.options import DEFAULT_STATE, State
from lcplan.engine.importer import Imported, read
from lcplan.view.import_ import import_json, import_notes

File = Annotated[str, typer.Argument(metavar="FILE|-", help="A command, script or YAML file; - is standard input.")]
Running = Annotated[str, typer.Option("--container", metavar="NAME", help="Read a running container instead.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the recipe to a file.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite a file that holds something else.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print what was read as JSON, and write no recipe.")]
Results = Annotated[
    Path | None, typer.Option("--results", metavar="DIR", help="Adopt the runs of an older campaign into the state.")
]


def register(app: typer.Typer) -> None:
    """Add the command `import`."""
    app.command("import", help="Turn an existing launch command into a recipe, or adopt older results.")(_import)


def _import(
    file: File = "",
    container: Running = "",
    output: Output = None,
    force: Force = False,
    as_json: AsJson = False,
    results: Results = None,
    state: State = DEFAULT_STATE,
) -> None:
    try:
        if results is not None and not (file or container):
            _adopt(results, state, as_json)
            return
        if bool(file) == bool(container) or results is not None:
            raise fail("usage", "give either FILE (or -), --container NAME or --results DIR")
        source = container or ("<stdin>" if file == "-" else file)
        imported = _running(container) if container else read(_text(file))
        if as_json:
            typer.echo(import_json(imported, source))
            _tell([d for d in imported.diagnostics(source) if d.severity == "error"])
        else:
            _recipe(imported, source, output, force)
    except LcplanError as wrong:
        _tell(wrong.diagnostics)
        raise typer.Exit(1) from None
    if imported.failed:
        raise typer.Exit(1)


def _adopt(results: Path, state: Path, as_json: bool) -> None:
    from lcplan.audit.adopt import adopt
    from lcplan.cli.output import show, show_json
    from lcplan.record.lock import hold
    from lcplan.view.import_ import adopted_text

    with hold(state, "lcplan import --results"):
        runs, problems = adopt(state, results)
    if as_json:
        show_json({"runs": [one.as_json() for one in runs], "messages": [one.as_json() for one in problems]})
    else:
        show(adopted_text(runs, state))
    _tell(problems)
    if has_errors(problems):
        raise typer.Exit(1)


def _recipe(imported: Imported, source: str, output: Path | None, force: bool) -> None:
    from lcplan.engine.importer.recipe import to_recipe

    found = imported.diagnostics(source)
    if not has_errors(found) and imported.model is None:
        found.append(error("no-recipe", "a recipe needs a model, and the text names none"))
    if has_errors(found):
        raise LcplanError(*found)
    recipe = to_recipe(imported, source)
    notes = import_notes([*found, *recipe.diagnostics], imported.unresolved)
    if notes:
        typer.echo(notes, err=True)
    if has_errors(recipe.diagnostics):
        raise LcplanError()
    if output is None:
        typer.echo(recipe.text, nl=False)
        return
    if output.exists() and not force and output.read_text(errors="replace") != recipe.text:
        raise fail("file-exists", f"{output} holds something else", "write to another file, or use --force")
    try:
        write_atomic(output, recipe.text)
    except OSError as wrong:
        raise fail("file-unwritable", f"{output}: {wrong.strerror or wrong}") from None
    typer.echo(f"wrote {output}", err=True)


def _running(name: str) -> Imported:
    from lcplan.engine.importer.running import read_running

    return read_running(name)


def _text(file: str) -> str:
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as wrong:
        raise fail("file-unreadable", f"{file}: {wrong.strerror or wrong}") from None
    return raw.decode("utf-8", errors="replace")


def _tell(diagnostics: list[Diagnostic] | tuple[Diagnostic, ...]) -> None:
    for diagnostic in diagnostics:
        typer.echo(str(diagnostic), err=True)
