"""Saved output of tools as numbered lines: colour codes gone, blanks as they are."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lcplan.base.diagnostics import Source

_CODES = re.compile(
    r"(?:\x1b|\\x1b|\\u001b|\\033|\\e|\^\[|\u241b)?\[\d{0,3}(?:;\d{1,3}){0,4}m|\x1b\[[\d;?]{0,12}[A-Za-z]"
)
_BARE_CODE = re.compile(r"(?<![A-Za-z0-9])\d{1,2}m(?=GPU|NIC)")
"""A code whose escape character and bracket were lost on the way, in front of a label: `4mGPU0`."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a text, with the place it came from."""

    text: str
    source: Source


def lines_of(text: str, file: str) -> list[Line]:
    """Return the lines of a text without colour and underline codes, other controls as blanks; numbers count from 1."""
    if "\n" not in text.strip() and "\\n" in text:
        text = text.replace("\\n", "\n").replace("\\t", "\t")
    cleaned = (_BARE_CODE.sub("", _CODES.sub("", line)) for line in re.split(r"\r\n|\r|\n", text))
    return [
        Line("".join(c if c.isprintable() or c == "\t" else " " for c in line), Source(file, number))
        for number, line in enumerate(cleaned, start=1)
    ]
