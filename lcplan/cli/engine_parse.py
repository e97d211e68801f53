"""`lcplan engine parse`: the facts of an engine's start-up log."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from lcplan.base.diagnostics import Diagnostic, error
from lcplan.engine.logs import LogFacts, LogReader
from lcplan.view.engine_parse import facts_text

_KINDS = ("vllm", "sglang", "openai")


def register(app: typer.Typer) -> None:
    """Add `engine parse` to the group `engine`, which is made when no other verb has made it."""
    group = next((g.typer_instance for g in app.registered_groups if g.name == "engine" and g.typer_instance), None)
    if group is None:
        group = typer.Typer(help="What an engine means: its flags, its log.", no_args_is_help=True)
        app.add_typer(group, name="engine")
    group.command("parse", help="Read an engine's log: KV pool, context, memory, choices, ready or why it failed.")(
        _parse
    )


def _parse(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="A log file; - is standard input.")],
    engine: Annotated[str, typer.Option(help="vllm, sglang or openai; by default every engine's lines are read.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    if engine and engine not in _KINDS:
        _refuse(error("unknown-engine", f"'{engine}' is no kind of engine", f"known: {', '.join(_KINDS)}"))
    try:
        facts = _facts(file, engine or None)
    except OSError as wrong:
        _refuse(error("file-unreadable", f"{file}: {wrong.strerror or wrong}"))
    typer.echo(json.dumps(facts.as_json(), indent=2) if as_json else facts_text(facts), nl=as_json)


def _facts(file: str, engine: str | None) -> LogFacts:
    reader = LogReader(engine)
    if file == "-":
        while chunk := sys.stdin.buffer.read(1 << 18):
            reader.feed(chunk)
    else:
        reader.follow(Path(file))
    return reader.facts()


def _refuse(diagnostic: Diagnostic) -> None:
    typer.echo(str(diagnostic), err=True)
    raise typer.Exit(1)
