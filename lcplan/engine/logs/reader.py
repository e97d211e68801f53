"""Reading a log bit by bit: any chunks give the facts of the whole, memory stays constant, boring text costs little."""

from __future__ import annotations

import codecs
import copy
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from lcplan.engine.logs.facts import LogFacts
from lcplan.engine.logs.resolve import resolve
from lcplan.engine.logs.state import INDEX, State

_BLOCK = 1 << 18
_LONGEST_LINE = 1 << 16


class LogReader:
    """Reads one server's log. `engine` (vllm, sglang, openai) limits what is looked for; None looks for everything."""

    def __init__(self, engine: str | None = None) -> None:
        self._kind = engine if engine in ("vllm", "sglang", "openai") else None
        self._offset = 0
        self._reset()

    def feed(self, chunk: bytes | str) -> None:
        """Take the next part of the log, cut anywhere."""
        text = chunk if isinstance(chunk, str) else self._decoder.decode(chunk)
        for at in range(0, len(text), _BLOCK):
            self._parts.append(text[at : at + _BLOCK])
            self._size += len(self._parts[-1])
            if self._size >= _BLOCK:
                self._drain()

    def facts(self) -> LogFacts:
        """Return the facts of all that was fed, an unfinished last line included. More may be fed afterwards."""
        self._drain()
        if not self._size:
            return resolve(self._state)
        state = copy.deepcopy(self._state)
        _read(state, "".join(self._parts))
        return resolve(state)

    def follow(self, path: Path, offset: int | None = None) -> int:
        """Read what a growing file holds behind `offset` (default: where the last call ended); return the new offset.

        A file that became shorter was written anew and is read from its start. Raises OSError.
        """
        start = self._offset if offset is None else offset
        with path.open("rb") as file:
            if file.seek(0, 2) < start:
                self._reset()
                start = 0
            file.seek(start)
            while chunk := file.read(_BLOCK):
                self.feed(chunk)
            self._offset = file.tell()
        return self._offset

    def _reset(self) -> None:
        self._state = State(self._kind)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._parts: list[str] = []
        self._size = 0

    def _drain(self) -> None:
        """Read all lines that have ended, and what is too long to be kept until its end."""
        text = "".join(self._parts)
        end = max(text.rfind("\n"), text.rfind("\r")) + 1
        end += (len(text) - end) // _LONGEST_LINE * _LONGEST_LINE
        _read(self._state, text[:end])
        self._parts = [text[end:]] if end < len(text) else []
        self._size = len(text) - end


def _read(state: State, text: str) -> None:
    """Give a state the telling lines of a text, the lines near them, and word of the rest."""
    if "\r" in text:
        text = text.replace("\r", "\n")
    at = 0
    telling = _telling(text, INDEX[state.kind].words)
    for start in sorted(telling):
        _pass(state, text[at:start])
        at = _line(state, text, start, telling[start])
    _pass(state, text[at:])


def _telling(text: str, words: Sequence[str]) -> dict[int, list[str]]:
    """Return the words that each telling line holds, by where the line starts."""
    lines: dict[int, list[str]] = defaultdict(list)
    for word in words:
        at = text.find(word)
        while at >= 0:
            lines[text.rfind("\n", 0, at) + 1].append(word)
            at = text.find("\n", at)
            at = text.find(word, at) if at >= 0 else -1
    return lines


def _pass(state: State, text: str) -> None:
    """Give a state the lines that follow a telling one, and word of the rest."""
    at = 0
    while state.near and at < len(text):
        at = _line(state, text, at, ())
    rest = text[at:].rstrip()
    if rest:
        if state.stuck:
            for line in rest.split("\n"):
                state.stats(line)
        state.skip(rest[rest.rfind("\n") + 1 :][-_LONGEST_LINE:])


def _line(state: State, text: str, start: int, words: Sequence[str]) -> int:
    """Give a state the line that starts there, in pieces when it is too long; return where the next one starts."""
    end = text.find("\n", start)
    end = len(text) if end < 0 else end
    for at in range(start, end, _LONGEST_LINE):
        piece = text[at : min(at + _LONGEST_LINE, end)]
        if piece.strip():
            state.line(piece, words)
    return end + 1
