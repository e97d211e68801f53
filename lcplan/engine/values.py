"""Values of flags: from text or YAML to what the engine would make of them, and back to text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lcplan.engine.catalogue import Flag

Human = Mapping[str, int]
# vLLM: vllm/utils/argparse_utils.py (human_readable_int); SGLang: sglang/srt/utils/common.py (human_readable_int).
HUMAN: Mapping[str, Human] = {
    "vllm": {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40},
    "sglang": {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40},
}
_HUMAN_INT = re.compile(r"(\d+(?:\.\d+)?)([A-Za-z]{1,2})")


def typed(flag: Flag, value: Any, *, human: Human) -> Any:
    """Return the typed value of a text or YAML value for a flag. Raises ValueError with a sentence."""
    if value is None or (flag.nullable and value in ("", "None")):
        return None
    if flag.kind in ("switch", "bool-optional"):
        return _boolean(flag, value)
    if flag.bare is not None and value is True:
        return flag.bare
    if flag.kind == "list":
        items = value if isinstance(value, (list, tuple)) else [value]
        return [_chosen(flag, _scalar(flag, item, human)) for item in items]
    if flag.kind == "json":
        return _json(flag, value)
    if flag.json_text and (isinstance(value, Mapping) or str(value).lstrip().startswith("{")):
        return _json(flag, value)
    if flag.type.startswith("comma list") and isinstance(value, (list, tuple)):
        return ",".join(str(item) for item in value)
    return _chosen(flag, _scalar(flag, value, human))


def text(value: Any) -> str:
    """Return a value as an engine reads it: plain integers, shortest floats, compact JSON for mappings and lists."""
    if isinstance(value, str):
        return value
    if isinstance(value, (Mapping, list, tuple, bool)):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if isinstance(value, float):
        return repr(float(value))
    return str(value)


def human_int(value: str, human: Human) -> int:
    """Return the integer of `8192`, `25.6k` or `1M` with an engine's own suffixes. Raises ValueError."""
    found = _HUMAN_INT.fullmatch(value.strip())
    if not found:
        return int(value)
    number, suffix = found[1], found[2]
    if suffix not in human:
        raise ValueError(f"suffix '{suffix}' is not known here (known: {', '.join(human)})")
    factor = human[suffix]
    if "." not in number:
        return int(number) * factor
    if factor % 1000:
        raise ValueError(f"'{value}': decimals are not allowed with a binary suffix")
    whole, _, decimals = number.partition(".")
    return int(whole) * factor + int(decimals) * factor // int(10 ** len(decimals))


def _boolean(flag: Flag, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    forms = f"{flag.option} or {flag.negative[0]}" if flag.negative else flag.option
    raise ValueError(f"{flag.option} takes no value (got {_show(value)}); the engine knows {forms} alone")


def _scalar(flag: Flag, value: Any, human: Human) -> Any:
    if isinstance(value, (Mapping, list, tuple)):
        raise ValueError(f"{flag.option} takes one value of type {flag.type}, not {_show(value)}")
    if isinstance(value, bool):
        raise ValueError(f"{flag.option} takes a value of type {flag.type}, not {_show(value)}")
    kind = flag.type
    try:
        if kind == "int":
            return _integer(value)
        if kind.startswith("int("):
            if "auto" in kind and value == "auto":
                return value
            return human_int(value, human) if isinstance(value, str) else _integer(value)
        if kind == "float":
            return float(value)
    except ValueError as fault:
        reason = f": {fault}" if "suffix" in str(fault) else ""
        raise ValueError(f"{flag.option} takes {_article(kind)}, not {_show(value)}{reason}") from None
    return text(value)


def _integer(value: Any) -> int:
    if isinstance(value, float):
        raise ValueError("not an integer")
    number: int = int(value)
    return number


def _json(flag: Flag, value: Any) -> Any:
    if not isinstance(value, str):
        return list(value) if isinstance(value, tuple) else value
    try:
        return json.loads(value)
    except ValueError as fault:
        if flag.type.startswith("str|") and not value.lstrip().startswith("{"):
            return value
        raise ValueError(f"{flag.option} takes JSON, and {_show(value)} is none ({fault})") from None


def _chosen(flag: Flag, value: Any) -> Any:
    if flag.choices is None:
        return value
    if flag.folded and isinstance(value, str):
        value = value.lower().replace("-", "_")
    if value not in flag.choices:
        known = ", ".join(str(choice) for choice in flag.choices if choice is not None)
        raise ValueError(f"{flag.option} has no choice {_show(value)}; known: {known}")
    return value


def _article(kind: str) -> str:
    return {"int": "an integer", "float": "a number"}.get(kind, "an integer")


def _show(value: Any) -> str:
    shown = repr(value) if isinstance(value, str) else text(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
