"""Engines: what a serving engine's command line means, and what it says of itself. One folder for each kind."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from lcplan.base.diagnostics import fail, nearest

if TYPE_CHECKING:
    from lcplan.engine.base import Engine

_MODULES = {
    "vllm": "lcplan.engine.vllm.command",
    "sglang": "lcplan.engine.sglang.command",
    "openai": "lcplan.engine.openai.command",
    "vllm-router": "lcplan.engine.vllm.router",
}
KINDS = tuple(_MODULES)


@cache
def get(kind: str) -> Engine:
    """Return the engine of a kind: vllm, sglang, openai or vllm-router. Raises LcplanError for any other."""
    if kind not in _MODULES:
        raise fail(
            "unknown-engine", f"'{kind}' is no kind of engine", nearest(kind, KINDS) or f"known: {', '.join(KINDS)}"
        )
    engine: Engine = import_module(_MODULES[kind]).ENGINE
    return engine
