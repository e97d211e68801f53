"""Argument dumps: the `{...}`, `ServerArgs(...)`, `Namespace(...)` and `key=value, ...` texts that engines print.

They are Python reprs of arbitrary objects, so they are cut into top-level items here and never evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

# A quote that nothing closes runs to the end, so that every token is read once
_TOKEN = re.compile(r"'(?:[^'\\]|\\.)*(?:'|\\?$)|\"(?:[^\"\\]|\\.)*(?:\"|\\?$)|[\[({<]|[\])}>]|,")
_KEY = re.compile(r"\s*['\"]?([A-Za-z_]\w{0,60})['\"]?\s{0,2}[:=]\s?")
_SNAPSHOT = re.compile(r"models--([^/]+?)--([^/]+)(?:/|$)")
_INTEGER = re.compile(r"-?\d{1,15}")
_SIZE = re.compile(r"-?\d{1,12}(?:\.\d{1,12})?")


@dataclass(frozen=True, slots=True)
class Arguments:
    """Top-level items of a dump, values as printed without quotes; `complete` when its closing bracket was there."""

    items: Mapping[str, str]
    complete: bool

    def word(self, *names: str) -> str | None:
        """Return the first of the named values that is printed and not None."""
        return next((self.items[n] for n in names if self.items.get(n, "None") not in ("None", "")), None)

    def integer(self, *names: str) -> int | None:
        """Return the first of the named values as an integer, None when it is missing or no plain integer."""
        word = self.word(*names)
        return int(word) if word and _INTEGER.fullmatch(word) else None

    def number(self, *names: str) -> float | None:
        """Return the first of the named values as a number, None when it is missing or no plain number."""
        word = self.word(*names)
        return float(word) if word and _SIZE.fullmatch(word) else None


def read_arguments(text: str) -> Arguments:
    """Return the items of a dump; `text` starts at its opening bracket, or at the first `key=` of a bare list."""
    items: dict[str, str] = {}
    opened = re.match(r"\w{0,40}[({]", text)
    at = start = opened.end() if opened else 0
    depth, complete = 0, False
    for token in _TOKEN.finditer(text, at):
        sign = token[0]
        if sign in "[({<":
            depth += 1
        elif sign in "])}>":
            depth -= 1
            if depth < 0:
                at, complete = token.start(), True
                break
        elif sign == "," and depth == 0:
            _item(text[start : token.start()], items)
            start = token.end()
        at = token.end()
    _item(text[start : at if complete else len(text)], items)
    return Arguments(items, complete)


def model_name(path: str) -> str:
    """Return the model's name: a hub id as it is, org/name of a hub snapshot path, the last part of a local path."""
    snapshot = _SNAPSHOT.search(path)
    if snapshot:
        return f"{snapshot[1]}/{snapshot[2]}"
    local = path.startswith(("/", ".", "~")) or "\\" in path or path.count("/") > 1
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1] if local else path


def _item(text: str, items: dict[str, str]) -> None:
    key = _KEY.match(text)
    if key:
        value = text[key.end() :].strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        items.setdefault(key[1], value)
