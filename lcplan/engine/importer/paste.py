"""Text as people paste it -> plain text: line ends, prompts, fences, typographic characters, continuations."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lcplan.engine.importer.findings import Finding
from lcplan.engine.importer.units import as_shell

_FENCE = re.compile(r"[ \t]*(?:>[ \t]*)?(?:```|~~~)")
_PROMPT = re.compile(
    r"^(?:\([\w.-]+\)[ \t]*)?"
    r"(?:\[?[\w.-]+@[\w.-]+[: ][^\s$#%]*\]?[$#%]|[$%❯➜]|PS [^>\n]{0,80}>|[A-Z]:\\[^>\n]{0,80}>)[ \t]+(?=\S)",
    re.MULTILINE,
)
_SECOND_PROMPT = re.compile(r"(?<=\\\n)>[ \t]+")
_DASHES = re.compile(r"(?<![^\s\"'\[])(?:[‐‑‒–—―−]{1,2}|-[‐‑‒–—―−])(?=[A-Za-z]{2})")
_SHORT_DASH = re.compile(r"(?<![^\s\"'\[])[‐‑‒–—―−](?=[A-Za-z](?:\s|$))")
_BLANKS = str.maketrans({"\u00a0": " ", "\u202f": " "})
_QUOTES = {**str.maketrans({"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'"}), **_BLANKS}
_INVISIBLE = str.maketrans({"\ufeff": None, "\0": None})
_TYPOGRAPHIC = re.compile("[“”„‘’\u00a0\u202f‐‑‒–—―−]")
_QUOTED = re.compile(r"""'[^'\n]*'|"(?:[^"\\\n]|\\.)*+"|[^'"]+|['"]""")
# `C:\models`: no shell that is read here knows such paths, and their backslashes escape nothing.
_WINDOWS_PATH = re.compile(r"(?<![\w/'])[A-Za-z]:(?:\\[\w.~-]++)++")
_BACKTICK = re.compile(r"(?<=\s)`[ \t]*$", re.MULTILINE)
_CARET = re.compile(r"(?<=\s)\^[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Pasted:
    """The sections of a text (fenced blocks, or the whole), and what was odd about it."""

    sections: tuple[str, ...]
    findings: tuple[Finding, ...]


def clean(text: str) -> Pasted:
    """Return the sections of a pasted text in plain spelling."""
    findings: list[Finding] = []
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    plain = text.translate(_INVISIBLE)
    if _TYPOGRAPHIC.search(plain):
        plain, changed = _plain(plain)
        if changed:
            findings.append(Finding("typographic-characters"))
    sections = _fenced(plain) if "```" in plain or "~~~" in plain else []
    return Pasted(tuple(_section(section) for section in sections or [plain]), tuple(findings))


def _plain(text: str) -> tuple[str, bool]:
    """The text with typographic characters as plain ones, but not inside single quotes, and whether that changed it."""
    changed = False

    def plain(found: re.Match[str]) -> str:
        nonlocal changed
        piece = found[0]
        if len(piece) > 1 and piece[0] == "'":
            return piece
        made = _SHORT_DASH.sub("-", _DASHES.sub("--", piece.translate(_QUOTES)))
        changed = changed or made != piece.translate(_BLANKS)
        return made

    return _QUOTED.sub(plain, text), changed


def _fenced(text: str) -> list[str]:
    """The blocks between fences of a Markdown text."""
    blocks: list[list[str]] = []
    inside = False
    for line in text.split("\n"):
        if _FENCE.match(line):
            inside = not inside
            if inside:
                blocks.append([])
        elif inside:
            blocks[-1].append(line)
    return ["\n".join(block) + "\n" for block in blocks]


def _section(text: str) -> str:
    text, prompts = _PROMPT.subn("", text)
    if prompts:
        text = _SECOND_PROMPT.sub("", text)
    text = _WINDOWS_PATH.sub(lambda found: found[0].replace("\\", "\\\\"), text)
    ticks = len(_BACKTICK.findall(text))
    if ticks and ticks == text.count("`"):
        text = _BACKTICK.sub(r"\\", text)
    if "\\\n" not in text and _CARET.search(text):
        text = _CARET.sub(r"\\", text)
    return as_shell(text)
