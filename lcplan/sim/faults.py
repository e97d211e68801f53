"""Faults that a simulated server is told to have: a JSON list of `{"match": glob, "fault": kind, ...parameters}`."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

# kind -> its parameters with their defaults
KINDS: Mapping[str, Mapping[str, Any]] = {
    "never_ready": {"stage": "load"},  # load: the port stays closed; warmup: SGLang answers 503 for ever
    "die_at_start": {"class": "oom"},
    "die_while_serving": {"requests": None, "seconds": None},
    "wrong_token_counts": {"by": 1, "field": "prompt_tokens"},
    "reset_lies": {},
    "slow": {"factor": 3.0},
    "pool": {"tokens": None},
    "cached": {"share": 0.5},
    "hang_engine": {"requests": 0},
    "drop_usage": {},
    "cut_stream": {"tokens": 4},
    "miss_needle": {"depths": None, "probability": None, "seed": 0},
}
START_CLASSES = (
    "oom",
    "kv_no_memory",
    "kv_too_small",
    "memory_not_free",
    "gated_model",
    "port_in_use",
    "not_enough_gpus",
    "worker_died",
    "engine_failed",
)


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of one server, by kind, with their parameters filled in."""

    chosen: Mapping[str, Mapping[str, Any]]

    def get(self, kind: str) -> Mapping[str, Any] | None:
        """Return the parameters of a fault, or None when this server does not have it."""
        return self.chosen.get(kind)

    def misses(self, depth: float, code: str) -> bool:
        """Return whether the needle at a depth is to be missed; the same seed and code decide the same way."""
        fault = self.get("miss_needle")
        if fault is None:
            return False
        if fault["depths"] is not None:
            return any(abs(depth - float(wanted)) <= 0.03 for wanted in fault["depths"])
        if fault["probability"] is not None:
            return random.Random(f"{fault['seed']}:{code}").random() < float(fault["probability"])
        return True


def read(text: str, served: str) -> Faults:
    """Return the faults of a served name; a later entry of a kind wins. Raises ValueError with a sentence."""
    entries = json.loads(text) if text else []
    if not isinstance(entries, list):
        raise ValueError("faults are a JSON list of {match, fault, ...}")
    chosen: dict[str, Mapping[str, Any]] = {}
    for entry in entries:
        kind, parameters = _checked(entry)
        if fnmatchcase(served, str(entry.get("match", "*"))):
            chosen[kind] = parameters
    return Faults(chosen)


def _checked(entry: Any) -> tuple[str, dict[str, Any]]:
    if not isinstance(entry, dict):
        raise ValueError(f"a fault is a mapping, not {entry!r}")
    kind = str(entry.get("fault"))
    if kind not in KINDS:
        raise ValueError(f"unknown fault '{kind}'; known: {', '.join(KINDS)}")
    given = {key: value for key, value in entry.items() if key not in ("match", "fault")}
    _known(given, KINDS[kind], kind)
    if kind == "die_at_start" and given.get("class", "oom") not in START_CLASSES:
        raise ValueError(f"fault 'die_at_start' has no class '{given['class']}'; known: {', '.join(START_CLASSES)}")
    return kind, {**KINDS[kind], **given}


def _known(given: Mapping[str, Any], known: Mapping[str, Any], kind: str) -> None:
    unknown: Sequence[str] = [key for key in given if key not in known]
    if unknown:
        raise ValueError(f"fault '{kind}' has no parameter '{unknown[0]}'; known: {', '.join(known) or 'none'}")
