"""From declared args to an engine's argv and to their canonical form, by the catalogue of its version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lcplan.base.units import parse_tokens
from lcplan.engine import values
from lcplan.engine.catalogue import Catalogue, Flag

Items = Iterable[tuple[str, Any]]


def canonical(catalogue: Catalogue, items: Items) -> dict[str, Any]:
    """Return canonical flag names -> typed values. What renders to nothing is left out; unknown flags stay as written,
    values that their flag does not accept too (lint reports both)."""
    found: dict[str, Any] = {}
    for word, value in items:
        match = catalogue.match(word)
        if match is None:
            if value is not None and value is not False:
                found[word.lstrip("-")] = value
            continue
        flag, negated = match
        value = _lenient(catalogue, flag, value)
        if negated and isinstance(value, bool):
            value = not value
        if value is None or (flag.kind == "switch" and value is False):
            found.pop(flag.name, None)
        else:
            found[flag.name] = value
    return found


def argv(catalogue: Catalogue, items: Items) -> list[str]:
    """Return the tokens of declared args, in their order."""
    tokens: list[str] = []
    for word, value in items:
        match = catalogue.match(word)
        if match is None:
            tokens += _unknown(word, value)
        else:
            tokens += _tokens(catalogue, *match, value)
    return tokens


def recipe_value(catalogue: Catalogue, flag: Flag, value: Any) -> Any:
    """Return the typed value of a recipe's value. Raises ValueError with a sentence.

    Sizes on flags that count tokens or bytes are the recipe language's (K, M, G, T are powers of 1024), whatever the
    engine itself would read: vLLM and SGLang disagree.
    """
    if flag.type.startswith("int(") and isinstance(value, str) and value not in ("auto", "", "None"):
        if value[-1:] in "GT" and value[:-1].isdecimal():
            return int(value[:-1]) * values.HUMAN["vllm"][value[-1]]
        if not value.lstrip("-").isdecimal():
            return parse_tokens(value)
    return catalogue.typed(flag, value)


def _lenient(catalogue: Catalogue, flag: Flag, value: Any) -> Any:
    try:
        return recipe_value(catalogue, flag, value)
    except ValueError:
        return value


def _tokens(catalogue: Catalogue, flag: Flag, negated: bool, value: Any) -> list[str]:
    if flag.kind != "json" or not isinstance(value, str):
        value = _written(flag, _lenient(catalogue, flag, value), value)
    if value is None:
        return []
    if flag.kind in ("switch", "bool-optional") and isinstance(value, bool):
        if value is not negated:
            return [flag.option]
        return [flag.negative[0]] if flag.negative else []
    if flag.bare is not None and value == flag.bare:
        return [flag.option]
    if flag.kind == "list":
        words = [values.text(item) for item in (value if isinstance(value, list) else [value])]
        if flag.append:
            return [token for word in words for token in (flag.option, word)]
        return [flag.option, *words]
    return _pair(flag.option, values.text(value))


def _written(flag: Flag, typed: Any, value: Any) -> Any:
    """A number keeps its digits as written (`0.90`, from text or from a recipe); sizes become plain integers."""
    return str(value) if isinstance(value, (str, float)) and flag.type == "float" else typed


def _unknown(word: str, value: Any) -> list[str]:
    option = word if word.startswith("-") else f"--{word}"
    if value is None or value is False:
        return []
    if value is True:
        return [option]
    if isinstance(value, (list, tuple)) and not any(isinstance(item, (Mapping, list)) for item in value):
        return [option, *(values.text(item) for item in value)]
    return _pair(option, values.text(value))


def _pair(option: str, word: str) -> list[str]:
    # argparse takes a separate word that starts with a dash for a flag, unless it is a number.
    if word.startswith("-") and not word[1:].replace(".", "", 1).isdecimal():
        return [f"{option}={word}"]
    return [option, word]
