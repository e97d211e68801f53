"""`lcplan topology`: what a machine looks like, and the node file made of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated

import typer

from lcplan.base.diagnostics import LcplanError, fail, has_errors
from lcplan.base.files import write_atomic
from lcplan.node.detect import observe
from lcplan.node.model import Topology
from lcplan.node.nodefile import node_recipe, safe_name
from lcplan.node.quads import findings, propose_quads
from lcplan.view.topology import topology_json, topology_text

From = Annotated[
    list[str] | None,
    typer.Option(
        "--from", metavar="FILE", help="Saved output instead of this machine; - is standard input. Repeatable."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Write = Annotated[Path | None, typer.Option("--write", metavar="FILE", help="Write the node as a recipe file.")]
Name = Annotated[str, typer.Option("--name", help="Name of the node in that file; by default the host name.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite a file that holds something else.")]


def register(app: typer.Typer) -> None:
    """Add the commands `topology show` and `topology detect`."""
    group = typer.Typer(help="GPUs, NVLink islands, sockets and quads of a machine.", no_args_is_help=True)
    group.command("show", help="Show the topology in saved outputs of tools, or of this machine.")(_show)
    group.command("detect", help="Look at this machine with its tools; --write makes a node file.")(_show)
    app.add_typer(group, name="topology")


def _show(
    files: From = None, as_json: AsJson = False, write: Write = None, name: Name = "", force: Force = False
) -> None:
    try:
        topology = observe(files or ())
        quads, found = propose_quads(topology), findings(topology)
        if as_json:
            typer.echo(json.dumps(topology_json(topology, quads, found), indent=2))
        else:
            width = shutil.get_terminal_size((120, 24)).columns
            typer.echo(topology_text(topology, quads, found, width), nl=False)
        for diagnostic in topology.diagnostics:
            typer.echo(str(diagnostic), err=True)
        if write:
            _write(topology, write, name, force)
    except LcplanError as wrong:
        for diagnostic in wrong.diagnostics:
            typer.echo(str(diagnostic), err=True)
        raise typer.Exit(1) from None
    if has_errors(topology.diagnostics):
        raise typer.Exit(1)


def _write(topology: Topology, path: Path, name: str, force: bool) -> None:
    import socket

    text = node_recipe(topology, propose_quads(topology), safe_name(name or socket.gethostname()))
    if path.exists() and not force and path.read_text(errors="replace") != text:
        raise fail("file-exists", f"{path} holds something else", "write to another file, or use --force")
    try:
        write_atomic(path, text)
    except OSError as wrong:
        raise fail("file-unwritable", f"{path}: {wrong.strerror}") from None
    typer.echo(f"wrote {path}", err=True)
