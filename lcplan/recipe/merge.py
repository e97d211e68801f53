"""How declarations lie on each other: mappings merge by key, lists and scalars replace, null removes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `below` overlaid with `above`; neither is changed."""
    made = dict(below)
    for key, value in above.items():
        if value is None:
            made.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(made.get(key), Mapping):
            made[key] = merge(made[key], value)
        elif isinstance(value, Mapping):
            made[key] = merge({}, value)
        else:
            made[key] = value
    return made
