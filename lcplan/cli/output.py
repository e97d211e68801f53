"""Writing to stdout and stderr, for all verbs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from lcplan.base.diagnostics import Diagnostic


def show(text: str) -> None:
    """Write text to stdout, with one newline at its end."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def show_json(value: Any) -> None:
    """Write JSON to stdout."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def show_errors(diagnostics: Iterable[Diagnostic]) -> None:
    """Write diagnostics to stderr."""
    for one in diagnostics:
        sys.stderr.write(f"{one}\n")


def variables(given: Iterable[str] | None) -> dict[str, str]:
    """Return the variables of `--var name=value` options. Raises LcplanError."""
    from lcplan.base.diagnostics import fail

    made: dict[str, str] = {}
    for one in given or ():
        name, sign, value = one.partition("=")
        if not sign or not name:
            raise fail("bad-variable", f"--var {one}: expected name=value")
        made[name] = value
    return made
