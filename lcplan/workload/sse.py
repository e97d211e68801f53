"""Server-sent events, read as bytes in whatever pieces the network gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class EventReader:
    """An incremental reader of an event stream (WHATWG HTML, "Parsing an event stream"; lines end in LF or CRLF).

    Only `data` fields and comments are kept: nothing else is sent by inference servers.
    """

    _rest: bytes = b""
    _data: list[bytes] = field(default_factory=list)

    def feed(self, piece: bytes) -> Iterator[tuple[bool, bytes]]:
        """Yield (True, data) for every event that this piece completes and (False, comment) for every comment."""
        lines = (self._rest + piece).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(_value(line, 5))
            elif line.startswith(b":"):
                yield False, _value(line, 1)
            elif not line and self._data:
                yield True, self._event()

    def close(self) -> Iterator[tuple[bool, bytes]]:
        """Yield the event that a server left without its closing blank line."""
        yield from self.feed(b"\n")
        if self._data:
            yield True, self._event()

    def _event(self) -> bytes:
        event = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        self._data = []
        return event


def _value(line: bytes, start: int) -> bytes:
    return line[start + 1 :] if line[start : start + 1] == b" " else line[start:]
