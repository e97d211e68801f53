"""Diagnostics: what is wrong with an input, as values that are collected and shown together."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """A place in an input file. Lines and columns count from 1; 0 means the file as a whole."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        if not self.line:
            return self.file
        return f"{self.file}:{self.line}:{self.column}" if self.column else f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding: a code (kebab-case, documented in docs/diagnostics.md), a sentence, a hint, a place."""

    severity: Severity
    code: str
    message: str
    hint: str = ""
    source: Source | None = None
    related: tuple[Source, ...] = field(default=())

    def __str__(self) -> str:
        head = f"{self.source}: " if self.source else ""
        text = f"{head}{self.severity}[{self.code}]: {self.message}"
        for place in self.related:
            text += f"\n  also: {place}"
        return text + (f"\n  hint: {self.hint}" if self.hint else "")

    def as_json(self) -> dict[str, object]:
        """Return the shape that `--json` prints: severity, code, message, hint, file, line, column, related."""
        place = self.source or Source("")
        return {
            "severity": self.severity,
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "file": place.file,
            "line": place.line,
            "column": place.column,
            "related": [str(r) for r in self.related],
        }


class LcplanError(Exception):
    """A failure with diagnostics to show to the user; the command line prints them and exits with 1."""

    def __init__(self, *diagnostics: Diagnostic) -> None:
        super().__init__("\n".join(str(d) for d in diagnostics))
        self.diagnostics: tuple[Diagnostic, ...] = diagnostics


def error(code: str, message: str, hint: str = "", source: Source | None = None, *related: Source) -> Diagnostic:
    """Return an error diagnostic."""
    return Diagnostic("error", code, message, hint, source, related)


def warning(code: str, message: str, hint: str = "", source: Source | None = None, *related: Source) -> Diagnostic:
    """Return a warning diagnostic."""
    return Diagnostic("warning", code, message, hint, source, related)


def fail(code: str, message: str, hint: str = "", source: Source | None = None, *related: Source) -> LcplanError:
    """Return an exception that carries one error diagnostic, to be raised by the caller."""
    return LcplanError(error(code, message, hint, source, *related))


def has_errors(diagnostics: Iterable[Diagnostic]) -> bool:
    """Return whether any diagnostic is an error."""
    return any(d.severity == "error" for d in diagnostics)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint such as "did you mean 'stacks'?", or "" when no known name is near."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else ""
