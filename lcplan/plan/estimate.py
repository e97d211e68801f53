"""How long things take, from a table of rates, until history knows better. Rough on purpose: it orders a schedule.

The rates are those of large mixture-of-experts models on a quad of H200s (one million tokens prefilled in 60-150 s,
7-15 ms per token of one user).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LOAD_S = 240.0
"""Seconds from start to ready when the size of the weights is not known."""
LOAD_BASE_S = 90.0
LOAD_GIB_PER_S = 1.5
PREFILL_TOKENS_PER_S = 20_000.0
DEPTH_S = 40.0
"""Further seconds that the attention of one million tokens costs; grows with the square of the length."""
DECODE_S = 0.010
DECODE_PER_USER_S = 0.0004
CELL_S = 2.0


def load_seconds(weights_gib: float | None) -> float:
    """Return seconds from start to ready."""
    return LOAD_S if weights_gib is None else LOAD_BASE_S + weights_gib / LOAD_GIB_PER_S


def prefill_seconds(new: int, before: int = 0) -> float:
    """Return seconds for prefilling `new` tokens after `before` cached ones."""
    total = before + new
    return new / PREFILL_TOKENS_PER_S + DEPTH_S * (total * total - before * before) / 1e12


def decode_seconds(tokens: int, users: int) -> float:
    """Return seconds for `tokens` of each of `users` concurrent requests."""
    return tokens * (DECODE_S + DECODE_PER_USER_S * (users - 1))


def cell_seconds(kind: str, d: Mapping[str, Any], engines: int) -> float:
    """Return seconds for one cell on `engines` ranks that share its users."""
    ranks, total = max(1, engines), CELL_S
    if kind == "needle":
        return CELL_S + len(d["depths"]) * (prefill_seconds(d["prompt"]) + decode_seconds(d["output"], 1))
    if kind == "oneshot":
        return CELL_S + prefill_seconds(d["prompt"]) + decode_seconds(d["output"], 1)
    if kind == "ramp":
        users, before = int(d["conversations"]), 0
        for length in d["turns"]:
            total += users * prefill_seconds(length - before, before) + decode_seconds(d["output"], users)
            before = length
        return total
    if "rate" in d:
        sent, prefill = int(d["requests"]["total"]), prefill_seconds(d["prompt"])
        return total + max(sent / float(d["rate"]), sent * prefill / ranks) + decode_seconds(d["output"], 1)
    users = int(d["users"])
    waves = -(-users // ranks)
    if kind == "agent":
        turn = prefill_seconds(d["new"] + d["output"], d["history"]) * waves + decode_seconds(d["output"], users)
        return total + prefill_seconds(d["history"]) * waves + int(d["turns"]) * turn
    requests = int(max(d["requests"]["per_user"] * users, d["requests"].get("min", 1))) if kind == "sweep" else users
    total += prefill_seconds(d["prompt"]) * requests / min(ranks, users)
    return total + requests / users * decode_seconds(d["output"], users)
