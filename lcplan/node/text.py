"""Saved output of tools as numbered lines: what copying added to them is gone, blanks are as they are."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

from lcplan.base.diagnostics import Source

_CODES = re.compile(
    r"(?:\x1b|\\x1b|\\u001b|\\033|\\e|\^\[|\u241b)?\[\d{0,3}(?:;\d{1,3}){0,4}m|\x1b\[[\d;?]{0,12}[A-Za-z]"
)
_BARE_CODE = re.compile(r"(?<![A-Za-z0-9])\d{1,2}m(?=GPU|NIC)")
"""A code whose escape character and bracket were lost on the way, in front of a label: `4mGPU0`."""
_QUOTED = re.compile(r"^\s*>[>\s]*(?=[^\s>])")
"""Marks of a quotation in mail and Markdown."""

_TAG = re.compile(
    r"</?(?:a|b|br|code|div|em|i|li|p|pre|span|strong|table|tbody|td|th|thead|tr|u)(?:\s[^<>]{0,200})?/?>", re.I
)
_DRAWN = dict.fromkeys(range(9472, 9600), " ")
_DASHES = dict.fromkeys((8208, 8209, 8210, 8211, 8212, 8722), "-")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a text, with the place it came from."""

    text: str
    source: Source


def lines_of(text: str, file: str) -> list[Line]:
    """Return the lines of a text; numbers count from 1.

    Colour and underline codes, marks of a quotation and HTML tags are gone, other controls and drawn frames are blanks,
    typographic dashes are plain ones.
    """
    if "\n" not in text.strip() and "\\n" in text:
        text = text.replace("\\n", "\n").replace("\\t", "\t")
    cleaned = (_cleaned(line) for line in re.split(r"\r\n|\r|\n", text))
    return [
        Line("".join(c if c.isprintable() or c == "\t" else " " for c in line), Source(file, number))
        for number, line in enumerate(cleaned, start=1)
    ]


def _cleaned(line: str) -> str:
    text = _BARE_CODE.sub("", _CODES.sub("", line)).translate(_DRAWN | _DASHES)
    if "<" in text or "&" in text:
        text = html.unescape(_TAG.sub(" ", text))
    return _QUOTED.sub("", text)
