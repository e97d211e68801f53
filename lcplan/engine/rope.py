"""Rope scaling: the recipe's `rope_scaling` as an override of the model's config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lcplan.engine.base import ServerSpec
from lcplan.engine.catalogue import Catalogue

Items = list[tuple[str, Any]]
# Types which the engines themselves multiply the context for; of all others (YaRN and its kin) both expect that the
# config's max_position_embeddings is already scaled: vllm/config/model.py (_get_and_verify_max_len), 0.31.0, and
# sglang/srt/utils/hf_transformers/config.py (get_context_length), 0.5.21.
_SCALED_BY_ENGINE = ("linear", "dynamic", "ntk", "default")


def with_rope(spec: ServerSpec, catalogue: Catalogue, args: Items, name: str, key: str) -> Items:
    """Return the args with the model's new rope parameters, under `key` of the JSON flag `name`.

    The flag replaces entries of the model's config. Overrides of the recipe's own on that flag are kept and win.
    """
    if not spec.rope_scaling:
        return args
    wanted = overrides(spec.rope_scaling, spec.model_context, key)
    merged: Items = []
    found = False
    for word, value in args:
        flag = catalogue.find(word)
        given = _object(value) if flag and flag.name == name else None
        if given is not None:
            value, found = _merge(wanted, given), True
        merged.append((word, value))
    return merged if found else [*merged, (name, wanted)]


def overrides(scaling: Mapping[str, Any], model_context: int | None, key: str) -> dict[str, Any]:
    """Return the entries of the model's config for a recipe's `rope_scaling` (its `type` is their `rope_type`)."""
    rope = {("rope_type" if name == "type" else name): value for name, value in scaling.items()}
    found: dict[str, Any] = {key: rope}
    if rope.get("rope_type") in _SCALED_BY_ENGINE:
        return found
    if model_context is not None:
        rope.setdefault("original_max_position_embeddings", model_context)
    reach = scaled_context(scaling, model_context)
    if reach is not None:
        found["max_position_embeddings"] = reach
    return found


def scaled_context(scaling: Mapping[str, Any], model_context: int | None) -> int | None:
    """Return how many tokens the scaled model reaches: original context x factor; None when either is unknown."""
    original = scaling.get("original_max_position_embeddings", model_context)
    factor = scaling.get("factor")
    if not isinstance(original, int) or isinstance(factor, bool) or not isinstance(factor, (int, float)):
        return None
    return int(original * factor)


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
