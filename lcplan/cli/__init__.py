"""The command line: parse arguments, call one use case, hand the result to a view."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

_VERBS = {
    "init": "init",
    "validate": "validate",
    "fmt": "fmt",
    "topology": "topology",
    "import": "import_",
    "engine": "engine",
    "capacity": "capacity",
    "lock": "lock",
    "plan": "plan",
    "show": "show",
    "diff": "diff",
    "apply": "apply",
    "destroy": "destroy",
    "state": "state",
    "runs": "runs",
    "audit": "audit",
    "report": "report",
    "graph": "graph",
    "sim": "sim",
    "demo": "demo",
    "version": "version",
}
"""Verb -> module of lcplan.cli. Only the module of the verb that was typed is imported: start-up time is a feature."""


def run(words: Sequence[str]) -> int:
    """Run one command line and return its exit code: 0 fine, 1 error (usage errors too), 2 as `plan` documents."""
    import click

    from lcplan.base.diagnostics import LcplanError
    from lcplan.cli.output import show_errors

    arguments = list(words)
    if arguments[:2] == ["plan", "diff"]:
        arguments = arguments[1:]
    app = build(arguments[0] if arguments and arguments[0] in _VERBS else None)
    import typer

    try:
        result = typer.main.get_command(app).main(args=arguments, prog_name="lcplan", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except LcplanError as problem:
        show_errors(problem.diagnostics)
        return 1
    except click.exceptions.NoArgsIsHelpError as problem:
        sys.stdout.write(problem.format_message() + "\n")
        return 0
    except click.ClickException as problem:
        problem.show()
        return 1
    except (click.exceptions.Abort, KeyboardInterrupt):
        sys.stderr.write("stopped\n")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as problem:
        place = f"{problem.filename}: " if problem.filename else ""
        sys.stderr.write(f"{place}error[io]: {problem.strerror or problem}\n")
        return 1


def build(verb: str | None) -> typer.Typer:
    """Return the application with one verb, or with all of them (for help)."""
    import typer

    app = typer.Typer(
        no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
        help="plan/apply for LLM serving campaigns.",
    )  # fmt: skip

    @app.callback()
    def lcplan() -> None:
        """Plan/apply for LLM serving campaigns."""

    for module in dict.fromkeys([_VERBS[verb]] if verb else _VERBS.values()):
        import_module(f"lcplan.cli.{module}").register(app)
    return app
