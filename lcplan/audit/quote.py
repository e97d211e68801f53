"""Quoted commands: a quotation may leave words out, but what it shows stands in the run's cmd.sh, in that order."""

from __future__ import annotations

import re
import shlex

_ELLIPSIS = {"...", "\u2026", "[...]", "\u2026]"}


def first_wrong(quotation: str, script: str) -> str | None:
    """Return the first words of a quotation that its script does not hold after those before, None when it is right.

    A flag and its value are one: `--max-num-seqs 8` is not in `--max-num-seqs 64 --port 8`. Raises ValueError with a
    sentence when the quotation is no shell text.
    """
    words = _words(script)
    at = 0
    for part in _parts(_words(re.sub(r"(?m)^\s*\$ ", "", quotation))):
        found = _find(part, words, at)
        if found is None:
            return " ".join(part)
        at = found + len(part)
    return None


def _words(text: str) -> list[str]:
    """Return the words of a shell text without comments; `--flag=value` counts as two."""
    words = []
    for word in shlex.split(text.replace("\\\n", " "), comments=True):
        words += word.split("=", 1) if re.match(r"--[A-Za-z0-9.-]+=", word) else [word]
    return words


def _parts(words: list[str]) -> list[list[str]]:
    parts: list[list[str]] = []
    open_flag = False
    for word in words:
        if word in _ELLIPSIS:
            open_flag = False
        elif open_flag and not _is_flag(word):
            parts[-1].append(word)
            open_flag = False
        else:
            parts.append([word])
            open_flag = _is_flag(word)
    return parts


def _is_flag(word: str) -> bool:
    return bool(re.match(r"--?[A-Za-z]", word))


def _find(part: list[str], words: list[str], at: int) -> int | None:
    return next((i for i in range(at, len(words) - len(part) + 1) if words[i : i + len(part)] == part), None)
