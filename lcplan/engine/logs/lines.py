"""Lines of a log: colours and other tools' prefixes taken off, records that share a line parted, their owner named.

Formats: vLLM `({process} pid={pid}) {LEVEL} {MM-DD HH:MM:SS} [{file}:{line}] {message}` (0.x without the brackets, and
without the tag before 0.8), SGLang `[YYYY-MM-DD HH:MM:SS{ DPn}{ PPn}...{ TPn}] {message}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache

_ESCAPE = r"(?:\x1b|\^\[|#033|\\x1b|\\u001b|\\033)"
_COLOUR = re.compile(
    rf"{_ESCAPE}\[[0-9;?]{{0,20}}[A-Za-z]|\[\d{{1,3}}(?:;\d{{1,3}}){{0,5}}m|\x1b\][^\x07\x1b]{{0,500}}(?:\x07|\x1b\\)"
)
_TAG = r"\([A-Za-z][\w.-]{0,80}(?: (?:rank=)?[A-Z]{0,8}\d{1,6}){0,8} pid=\d{1,10}(?:, ip=[^)\s]{1,60})?\)[ \t]{0,8}"
_VLLM = (
    r"\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})? "
    r"(?:\[[^\]\s]{1,200}:\d{1,6}\]|[\w./-]{1,200}\.py:\d{1,6}\]) ?"
)
_SGLANG = r"\[\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?(?: [A-Z_]{1,12}\d{1,5}){0,8}\] ?"
_HEADER = re.compile(rf"(?:{_TAG}){{1,4}}(?:{_VLLM})?|{_VLLM}|{_SGLANG}")
_TAG_PARTS = re.compile(r"\(([A-Za-z][\w.-]{0,80})((?: (?:rank=)?[A-Z]{0,8}\d{1,6}){0,8}) pid=(\d{1,10})")
_STAMP = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) (\d\d-\d\d) (\d\d:\d\d:\d\d)")
_BRACKET = re.compile(r"\[(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,]\d{1,6})?((?: [A-Z_]{1,12}\d{1,5}){0,8})\]")
_ENGINE = re.compile(r"EngineCore(?:_(?:DP)?(\d{1,6}))?$")
_DIMENSION = re.compile(r"(?:^|[_ ])(DP|PP|PCP|TP|DCP|EP|ATTN_CP|MOE_DP|rank=)(\d{1,6})(?=$|[_ ])")
_OUTER = re.compile(
    r"^\s*(?:\[pod/[^\]\s]{1,200}\] ?"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,80} \S{1,80}?(?:\[\d{1,10}\])?: "
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,\d]{0,12}(?:Z|[+-]\d\d:?\d\d)?\]? ?(?:(?:stdout|stderr) [FP] )?"
    r"|[\w.-]{1,80}\s{0,20}\| ?|\| )"
)
_UVICORN = re.compile(r"^(INFO|WARNING|ERROR|CRITICAL):\s{1,8}")


@dataclass(frozen=True, slots=True)
class Owner:
    """Who printed a record: its data-parallel engine (None = not named) and its rank in that engine ("" = unknown)."""

    process: str = ""
    pid: str = ""
    engine: int | None = None
    rank: str = ""
    pp: int | None = None


NOBODY = Owner()


@dataclass(frozen=True, slots=True)
class Record:
    """One record: body without prefixes, level ("" = unknown), owners in printed order, whether it had a prefix."""

    body: str
    level: str = ""
    owners: tuple[Owner, ...] = ()
    stamp: datetime | None = None
    headed: bool = False
    dialect: str = field(default="")


def records(line: str) -> Iterator[Record]:
    """Yield the records of one line of text: mostly one, more when two processes or a progress bar share the line."""
    line = strip_colour(line)
    at, header = 0, None
    for found in _HEADER.finditer(line) if "]" in line or " pid=" in line else ():
        if found.start() > at or header:
            yield from _record(line[at : found.start()], header)
        at, header = found.end(), found[0]
    yield from _record(line[at:], header)


def strip_colour(line: str) -> str:
    """Return a line without terminal colours, also those that lost their escape character on the way."""
    return _COLOUR.sub("", line) if "[" in line or "\x1b" in line else line


def _record(text: str, header: str | None) -> Iterator[Record]:
    body = text.strip()
    if header is None:
        for _ in range(3):
            shorter = _OUTER.sub("", body, count=1)
            if shorter == body:
                break
            body = shorter.strip()
        if body:
            level, body = _plain_level(body)
            yield Record(body, level, headed=False)
        return
    stamp = _time(header)
    plain, body = _plain_level(body)
    level = next(iter(_STAMP.findall(header)), ("",))[0] or plain
    if header.startswith("["):
        ranks = _BRACKET.match(header)
        yield Record(body, level, (_bracket_owner(ranks[3] if ranks else ""),), stamp, True, "sglang")
        return
    owners = tuple(_tag_owner(*parts) for parts in _TAG_PARTS.findall(header))
    yield Record(body, level, owners, stamp, True, "vllm")


def _plain_level(body: str) -> tuple[str, str]:
    found = _UVICORN.match(body)
    return (found[1], body[found.end() :]) if found else ("", body)


def _time(header: str) -> datetime | None:
    """Return the time in a header; vLLM prints no year, 2000 stands for it."""
    found = _STAMP.search(header)
    bracket = None if found else _BRACKET.search(header)
    try:
        if found:
            return datetime.fromisoformat(f"2000-{found[2]} {found[3]}")
        return datetime.fromisoformat(f"{bracket[1]} {bracket[2]}") if bracket else None
    except ValueError:
        return None


@lru_cache(maxsize=4096)
def _tag_owner(process: str, extra: str, pid: str) -> Owner:
    core = _ENGINE.match(process)
    if core:
        return Owner(process, pid, int(core[1]) if core[1] else None)
    sizes = {name: int(size) for name, size in _DIMENSION.findall(process + extra)}
    engine = sizes.pop("DP", None)
    return Owner(process, pid, engine, _rank(sizes), sizes.get("PP"))


@lru_cache(maxsize=4096)
def _bracket_owner(ranks: str) -> Owner:
    sizes = {name: int(size) for name, size in re.findall(r" ([A-Z_]+?)(\d+)(?= |$)", ranks)}
    engine = sizes.pop("DP", None)
    return Owner("", "", engine, _rank(sizes), sizes.get("PP"))


def _rank(sizes: dict[str, int]) -> str:
    return " ".join(f"{name}{size}" for name, size in sorted(sizes.items()))
