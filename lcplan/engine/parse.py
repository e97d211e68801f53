"""Reading an engine's arguments the way its own parser does (argparse, and vLLM's FlexibleArgumentParser)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lcplan.base.diagnostics import Diagnostic, error, nearest, warning
from lcplan.engine import values

if TYPE_CHECKING:
    from lcplan.engine.catalogue import Catalogue, Flag

_NUMBER = re.compile(r"-(\d+|\d*\.\d+)([eE][-+]?\d+)?")
_LEVEL = re.compile(r"-O=?(\d*)")


@dataclass(slots=True)
class Parsed:
    """What a command's arguments say: canonical flag names -> typed values, positionals, and what is wrong with them.

    A flag the catalogue does not know keeps its own spelling without dashes, with its text or True; a value that its
    flag does not accept keeps its text. `unknown` names the former.
    """

    flags: dict[str, Any] = field(default_factory=dict)
    positionals: list[str] = field(default_factory=list)
    problems: list[Diagnostic] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def parse(catalogue: Catalogue, tokens: Sequence[str]) -> Parsed:
    """Return what the tokens mean; never raises for bad input, the problems say what is wrong."""
    reader = _Reader(catalogue, list(tokens))
    reader.read()
    return reader.out


class _Reader:
    def __init__(self, catalogue: Catalogue, tokens: list[str]) -> None:
        self.catalogue = catalogue
        self.tokens = tokens
        self.at = 0
        self.out = Parsed()
        self.dotted: dict[str, dict[str, Any]] = {}

    def read(self) -> None:
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            self.at += 1
            if token == "--":
                self.out.positionals += self.tokens[self.at :]
                break
            if self.is_option(token):
                self.option(token)
            else:
                self.out.positionals.append(token)
        # vLLM appends the merged dotted arguments behind all others, so they win over a JSON value of the same flag.
        for name, merged in self.dotted.items():
            self.put(name, merged)

    def option(self, token: str) -> None:
        head, equals, tail = token.partition("=")
        explicit = tail if equals else None
        level = _LEVEL.fullmatch(token) if self.catalogue.underscores else None
        if level and (flag := self.catalogue.find("--optimization-level")):
            self.value(flag, level[1] or None)
            return
        if self.catalogue.underscores and "." in head and self.dotted_option(head, explicit):
            return
        found = self.catalogue.match(head)
        if found is None and not head.startswith("--") and len(head) > 2:
            # argparse reads `-n2` as `-n 2` where `-n` is a flag.
            short = self.catalogue.match(token[:2])
            if short and short[0].kind == "value":
                self.value(short[0], token[2:])
                return
        if found is None:
            self.unknown(head, explicit)
            return
        flag, negated = found
        if flag.kind in ("switch", "bool-optional"):
            self.boolean(flag, not negated, explicit)
        elif flag.kind == "list" and not flag.append:
            self.listed(flag, explicit)
        else:
            self.value(flag, explicit)

    def boolean(self, flag: Flag, value: bool, explicit: str | None) -> None:
        if explicit is None and self.at < len(self.tokens) and self.tokens[self.at].lower() in ("true", "false"):
            explicit = self.tokens[self.at]
            self.at += 1
        if explicit is not None:
            hint = f"write {flag.option}" + (f" or {flag.negative[0]}" if flag.negative else "") + " alone"
            self.problem("flag-value", f"{flag.option} takes no value, got '{explicit}'", hint)
            value = value and explicit.lower() != "false"
        self.put(flag.name, value)

    def value(self, flag: Flag, explicit: str | None) -> None:
        if explicit is None:
            if self.at < len(self.tokens) and not self.is_option(self.tokens[self.at]):
                explicit = self.tokens[self.at]
                self.at += 1
            elif flag.bare is not None:
                self.put(flag.name, flag.bare)
                return
            else:
                self.problem("flag-value", f"{flag.option} needs a value")
                self.put(flag.name, None)
                return
        value = self.typed(flag, explicit)
        if flag.append:
            self.out.flags.setdefault(flag.name, []).extend(value if isinstance(value, list) else [value])
        else:
            self.put(flag.name, value)

    def listed(self, flag: Flag, explicit: str | None) -> None:
        words = [] if explicit is None else [explicit]
        while explicit is None and self.at < len(self.tokens) and not self.is_option(self.tokens[self.at]):
            words.append(self.tokens[self.at])
            self.at += 1
        if not words and flag.nargs != "*":
            self.problem("flag-value", f"{flag.option} needs at least one value")
        self.put(flag.name, self.typed(flag, words))

    def dotted_option(self, head: str, explicit: str | None) -> bool:
        """Read `--json-flag.key.sub value` and `--json-flag.key+ a,b` (vLLM); False when it is no such flag."""
        root, _, path = head.partition(".")
        flag = self.catalogue.find(root)
        if flag is None or flag.kind != "json" or not path:
            return False
        if explicit is None and self.at < len(self.tokens):
            explicit = self.tokens[self.at]
            self.at += 1
        keys = path.removesuffix("+").split(".")
        value: Any = _json_or_text(explicit or "")
        node = self.dotted.setdefault(flag.name, {})
        for key in keys[:-1]:
            inner = node.setdefault(key, {})
            node = inner if isinstance(inner, dict) else node
        if path.endswith("+"):
            before = node.get(keys[-1])
            value = [*(before if isinstance(before, list) else []), *map(_json_or_text, (explicit or "").split(","))]
        node[keys[-1]] = value
        return True

    def unknown(self, head: str, explicit: str | None) -> None:
        name = head.lstrip("-")
        rivals = [f"--{known}" for known in self.catalogue.names() if known.startswith(name)]
        if len(rivals) > 1 and head.startswith("--"):
            self.problem("ambiguous-flag", f"{head} could be {', '.join(rivals[:4])}", "write the full name")
        else:
            engine = f"{self.catalogue.engine} {self.catalogue.version}"
            self.problem("unknown-flag", f"{engine} has no flag {head}", nearest(name, self.catalogue.names()))
        if explicit is None and self.at < len(self.tokens) and not self.is_option(self.tokens[self.at]):
            explicit = self.tokens[self.at]
            self.at += 1
        self.out.unknown.append(name)
        self.put(name, True if explicit is None else explicit)

    def typed(self, flag: Flag, value: Any) -> Any:
        try:
            return self.catalogue.typed(flag, value)
        except ValueError as fault:
            self.problem("flag-value", str(fault))
            return value

    def put(self, name: str, value: Any) -> None:
        if name in self.out.flags:
            shown = values.text(value)
            self.out.problems.append(
                warning("duplicate-flag", f"--{name} is given more than once", f"the last one wins: {shown[:80]}")
            )
        self.out.flags[name] = value

    def problem(self, code: str, message: str, hint: str = "") -> None:
        self.out.problems.append(error(code, message, hint))

    def is_option(self, token: str) -> bool:
        """As argparse decides: a dash that is not alone, no negative number, no text with a blank."""
        if len(token) < 2 or token[0] != "-" or _NUMBER.fullmatch(token):
            return False
        return " " not in token.partition("=")[0]


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
