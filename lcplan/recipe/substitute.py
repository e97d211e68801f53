"""`${var}` in recipes: typed variables with defaults, given on the command line with --var."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import Any

from lcplan.base.diagnostics import Diagnostic, error, nearest
from lcplan.base.units import parse_tokens
from lcplan.recipe.yamltree import Key, Tree, written

_HOLE = re.compile(r"\$\$\{|\$\{([^}]*)\}")
_KEYS = ("type", "default")
_TYPES = ("text", "tokens", "integer", "number", "boolean")


def variables(tree: Tree, given: Mapping[str, str], problems: list[Diagnostic]) -> dict[str, Any]:
    """Return the value of every declared variable; `given` are texts of --var. Errors are appended to `problems`."""
    declared = tree.data.get("variables")
    values: dict[str, Any] = {}
    if declared is not None and not isinstance(declared, dict):
        problems.append(error("wrong-type", "expected a mapping of variables", "", tree.place(("variables",))))
        return values
    declared = declared or {}
    for name in given:
        if name not in declared:
            hint = nearest(name, declared) or f"declared: {', '.join(declared) or 'none'}"
            problems.append(error("unknown-variable", f"--var {name}: no such variable is declared", hint))
    for name, declaration in declared.items():
        place = tree.place(("variables", name))
        for key in declaration if isinstance(declaration, dict) else ():
            if key not in _KEYS:
                hint = nearest(key, _KEYS) or "known keys: " + ", ".join(_KEYS)
                problems.append(error("unknown-key", f"unknown key '{key}' in variables.{name}", hint,
                                      tree.key_place(("variables", name, key))))  # fmt: skip
        kind, default = _declaration(declaration)
        if kind not in _TYPES:
            hint = nearest(str(kind), _TYPES) or "types: " + ", ".join(_TYPES)
            problems.append(error("wrong-type", f"variable '{name}': unknown type '{kind}'", hint, place))
            continue
        chosen = given.get(name, default)
        if chosen is None:
            problems.append(error("unset-variable", f"variable '{name}' has no value", f"give --var {name}=...", place))
            continue
        try:
            values[name] = _typed(kind, chosen)
        except ValueError as problem:
            problems.append(error("wrong-type", f"variable '{name}': {problem}", "", place))
    return values


def apply(tree: Tree, values: Mapping[str, Any], problems: list[Diagnostic]) -> Any:
    """Return the data with every `${name}` replaced; `$${` stands for a literal `${`."""

    declared = tree.data.get("variables") or {}

    def walk(value: Any, path: Key) -> Any:
        if isinstance(value, dict):
            return {key: walk(one, (*path, key)) for key, one in value.items()}
        if isinstance(value, list):
            return [walk(one, (*path, i)) for i, one in enumerate(value)]
        if not isinstance(value, str) or "${" not in value:
            return value
        whole = _HOLE.fullmatch(value)
        if whole and whole[1] is not None and whole[1] in values:
            return values[whole[1]]

        def fill(hole: re.Match[str]) -> str:
            if hole[1] is None:
                return "${"
            if hole[1] in values:
                return str(values[hole[1]])
            if hole[1] in declared:
                return hole[0]  # its declaration is wrong, which is told there
            hint = nearest(hole[1], declared) or "declare it under `variables:`, or write $${ for a literal ${"
            problems.append(error("unknown-variable", f"'${{{hole[1]}}}' is not declared", hint, tree.place(path)))
            return hole[0]

        return _HOLE.sub(fill, value)

    return {key: value if key == "variables" else walk(value, (key,)) for key, value in tree.data.items()}


def _declaration(declaration: Any) -> tuple[str, Any]:
    if isinstance(declaration, dict):
        return str(declaration.get("type", "text")), declaration.get("default")
    if isinstance(declaration, bool):
        return "boolean", declaration
    if isinstance(declaration, int):
        return "integer", declaration
    if isinstance(declaration, float):
        return "number", declaration
    return "text", declaration


def _typed(kind: str, value: Any) -> Any:
    if kind == "tokens":
        return parse_tokens(int(value) if isinstance(value, str) and value.isdecimal() else value)
    text = written(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
    expected = {"boolean": "true or false", "integer": "an integer", "number": "a number"}.get(kind, "a text")
    try:
        if kind == "boolean":
            return {"true": True, "false": False}[str(value).lower() if isinstance(value, bool) else value]
        if kind == "integer":
            return int(str(value))
        if kind == "number" and isfinite(number := float(str(value))):
            return number
        if kind == "text" and not isinstance(value, (dict, list)):
            return str(text)
    except (TypeError, ValueError, KeyError):
        pass
    raise ValueError(f"expected {expected}, got '{text}'")
