"""Serve entries in a plan: what becomes of each and why, drift apart from edits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from lcplan.plan.model import Plan, Serve

_WORDS = {"+": "start", "-/+": "relaunch", "-": "stop", "!": "blocked"}


def serve_headline(plan: Plan) -> list[str]:
    """Return one line that counts what becomes of the entries, none without entries."""
    count: Counter[str] = Counter(one.action for one in plan.serves)
    told = [f"{count[action]} {word} ({action})" for action, word in (*_WORDS.items(), ("=", "keep")) if count[action]]
    return [f"serve entries: {', '.join(told)}"] if told else []


def serve_text(plan: Plan) -> list[str]:
    """Return a group for every entry that changes."""
    return [
        "\n".join(["", f"{one.action:>3} {_what(one)}", *(f"      drift: {line}" for line in one.drift)])
        for one in _changing(plan)
    ]


def serve_markdown(plan: Plan) -> list[str]:
    """Return the same for a pull request comment."""
    return [
        "\n".join([f"\n**{one.action}** {_what(one)}", *(f"\n- drift: {line}" for line in one.drift)])
        for one in _changing(plan)
    ]


def _changing(plan: Plan) -> Iterator[Serve]:
    return (one for one in plan.serves if one.action != "=")


def _what(one: Serve) -> str:
    where = _where(one.place or one.held or {})
    return f"{_WORDS[one.action]} serve entry {one.name} on {where}: {one.reason}"


def _where(place: dict[str, Any]) -> str:
    return f"{place['node']}, GPUs {','.join(map(str, place['gpus']))}, port {place['port']}"
