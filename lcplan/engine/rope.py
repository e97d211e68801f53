"""Rope scaling: the recipe's `rope_scaling` as an override of the model's config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lcplan.engine.base import ServerSpec
from lcplan.engine.catalogue import Catalogue

Items = list[tuple[str, Any]]


def with_rope(spec: ServerSpec, catalogue: Catalogue, args: Items, name: str, key: str) -> Items:
    """Return the args with the rope parameters under `key` of the JSON flag `name`.

    Overrides of the recipe's own on that flag are kept and win.
    """
    if not spec.rope_scaling:
        return args
    wanted: dict[str, Any] = {key: rope_parameters(spec.rope_scaling, spec.model_context)}
    merged: Items = []
    found = False
    for word, value in args:
        flag = catalogue.find(word)
        given = _object(value) if flag and flag.name == name else None
        if given is not None:
            value, found = _merge(wanted, given), True
        merged.append((word, value))

    return merged if found else [*merged, (name, wanted)]


def rope_parameters(scaling: Mapping[str, Any], model_context: int | None) -> dict[str, Any]:
    """Return the model config's rope parameters for a recipe's `rope_scaling` (its `type` is their `rope_type`)."""
    found = {("rope_type" if key == "type" else key): value for key, value in scaling.items()}
    if model_context is not None:
        found.setdefault("original_max_position_embeddings", model_context)
    return found


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(below)
    for key, value in above.items():
        mine = out.get(key)
        out[key] = _merge(mine, value) if isinstance(mine, Mapping) and isinstance(value, Mapping) else value
    return out


def _object(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, Mapping) else None
