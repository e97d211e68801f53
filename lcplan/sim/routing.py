"""The command line of `vllm-router`, as far as the simulator needs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lcplan.engine.catalogue import load
from lcplan.sim.launch import StartFailure


@dataclass(frozen=True, slots=True)
class Routing:
    """Where the router listens, and the base URLs behind it. Without prefill servers it only spreads requests."""

    host: str
    port: int
    prefill: tuple[str, ...]
    decode: tuple[str, ...]


def read(words: Sequence[str]) -> Routing:
    """Return what a `vllm-router` command line means. Raises StartFailure for one that it would refuse."""
    parsed = load("vllm-router", None).parse(list(words))
    errors = [problem for problem in parsed.problems if problem.severity == "error"]
    if errors:
        raise StartFailure(f"usage: vllm-router [-h] ...\nvllm-router: error: {errors[0].message}", 2)
    flags = parsed.flags
    prefill, decode = _urls(flags.get("prefill")), _urls(flags.get("decode")) or _urls(flags.get("worker-urls"))
    if not decode:
        raise StartFailure("vllm-router: error: no server to route to", 2)
    return Routing(str(flags.get("host") or "127.0.0.1"), int(flags.get("port") or 30000), prefill, decode)


def _urls(value: Any) -> tuple[str, ...]:
    """The URLs of a flag; a bootstrap port may stand beside one, and the flag may be repeated."""
    if isinstance(value, (list, tuple)):
        return tuple(url for item in value for url in _urls(item))
    return (str(value).rstrip("/"),) if str(value or "").startswith("http") else ()
