"""Reading a log bit by bit: any chunks give the facts of the whole, memory stays constant, boring text costs little."""

from __future__ import annotations

import codecs
import copy
from pathlib import Path

from lcplan.engine.logs.facts import LogFacts
from lcplan.engine.logs.resolve import resolve
from lcplan.engine.logs.state import State, needles

_BLOCK = 1 << 18
_LONGEST_LINE = 1 << 16


class LogReader:
    """Reads one server's log. `engine` (vllm, sglang, openai) limits what is looked for; None looks for everything."""

    def __init__(self, engine: str | None = None) -> None:
        self._kind = engine if engine in ("vllm", "sglang", "openai") else None
        self._needles = needles(self._kind)
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
        _read(state, self._needles, "".join(self._parts))
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
        self._offset = 0

    def _drain(self) -> None:
        """Read all lines that have ended, and what is too long to be kept until its end."""
        text = "".join(self._parts)
        end = max(text.rfind("\n"), text.rfind("\r")) + 1
        end += (len(text) - end) // _LONGEST_LINE * _LONGEST_LINE
        _read(self._state, self._needles, text[:end])
        self._parts = [text[end:]] if end < len(text) else []
        self._size = len(text) - end


def _read(state: State, words: tuple[str, ...], text: str) -> None:
    """Give a state the telling lines of a text, the lines near them, and word of the rest."""
    if "\r" in text:
        text = text.replace("\r", "\n")
    at = 0
    for start in _telling(text, words):
        _pass(state, text[at:start])
        end = text.find("\n", start)
        at = len(text) if end < 0 else end
        for piece in range(start, at, _LONGEST_LINE):
            part = text[piece : min(piece + _LONGEST_LINE, at)]
            if part.strip():
                state.line(part, telling=True)
    _pass(state, text[at:])


def _telling(text: str, words: tuple[str, ...]) -> list[int]:
    """Return where the lines with a needle start, in order."""
    starts = set()
    for word in words:
        at = text.find(word)
        while at >= 0:
            starts.add(text.rfind("\n", 0, at) + 1)
            at = text.find("\n", at)
            at = text.find(word, at) if at >= 0 else -1
    return sorted(starts)


def _pass(state: State, text: str) -> None:
    at = 0
    while state.near and at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        for piece in range(at, end, _LONGEST_LINE):
            part = text[piece : min(piece + _LONGEST_LINE, end)]
            if part.strip():
                state.line(part, telling=False)
        at = end + 1
    rest = text[at:].rstrip()
    if rest:
        state.skip(rest[rest.rfind("\n") + 1 :][-_LONGEST_LINE:])
