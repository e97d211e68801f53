"""One request as planned, and the record of what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Request:
    """One planned request. `index` counts within its cell; `new_tokens` is the part of the prompt never sent before."""

    index: int
    user: int
    prompt_tokens: int
    output_tokens: int
    body: bytes
    new_tokens: int
    forced: bool = True  # exactly `output_tokens` are asked for
    keep_text: bool = False
    turn: int | None = None
    depth: float | None = None
    salt: str = ""
    path: str = COMPLETIONS
    last: bool = True  # its user sends no other one


@dataclass(slots=True)
class Record:
    """What became of a request. Times in ns of one clock; None for what never happened; `chunks` carry tokens."""

    request: Request
    scheduled: int
    sent: int
    first: int | None = None
    last: int | None = None
    chunks: list[int] = field(default_factory=list)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    status: int | None = None
    finish: str | None = None
    error: str | None = None
    unreachable: bool = False
    simulated: bool = False
    text: str = ""

    @property
    def ttft_s(self) -> float | None:
        """Seconds from sent to the first generated token."""
        return None if self.first is None else (self.first - self.sent) / 1e9

    @property
    def tpot_ms(self) -> float | None:
        """Milliseconds per token after the first, the count taken from the server's usage."""
        if self.first is None or self.last is None or not self.output_tokens or self.output_tokens < 2:
            return None
        return (self.last - self.first) / 1e6 / (self.output_tokens - 1)

    @property
    def e2e_s(self) -> float | None:
        """Seconds from sent to the last generated token."""
        return None if self.last is None else (self.last - self.sent) / 1e9


def as_plain(record: Record) -> dict[str, Any]:
    """Return a record as data for JSON, without the body that was sent."""
    plain = asdict(record)
    del plain["request"]["body"]
    return plain


def from_plain(plain: Mapping[str, Any], body: bytes = b"") -> Record:
    """Return the record of such data. Raises TypeError when it is none."""
    return Record(**{**plain, "request": Request(body=body, **plain["request"])})
