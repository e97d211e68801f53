"""YAML 1.2 text to plain data, with the place of every key and value kept."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from lcplan.base.diagnostics import Diagnostic, LcplanError, Source, error, fail

Node = Any  # ruamel.yaml's nodes carry no types
MAX_BYTES = 8 * 1024 * 1024
MAX_NODES = 200_000
MAX_DEPTH = 40

_OLD = re.compile(r"%YAML\s+(1\.[01])\b")

Key = tuple[str | int, ...]

_CORE = "tag:yaml.org,2002:"
_ACCEPTED = {_CORE + t for t in ("str", "int", "float", "bool", "null", "map", "seq", "timestamp", "merge", "value")}


class Number(float):
    """A YAML float that prints as it was written (0.90 stays 0.90 on a command line) and compares as its value."""

    text: str

    def __new__(cls, text: str) -> Number:
        """Return the number of a YAML 1.2 float scalar. Raises ValueError for anything else."""
        plain = text.replace("_", "").lower()
        special = {".inf": "inf", "+.inf": "inf", "-.inf": "-inf", ".nan": "nan"}
        made = super().__new__(cls, special.get(plain, plain))
        made.text = text
        return made

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


class Integer(int):
    """A YAML integer that is not written as it prints (`010`, `0x1F`, `1_000`); `text` is how it stands in the file."""

    text: str

    def __new__(cls, value: int, text: str) -> Integer:
        """Return an integer with its text."""
        made = super().__new__(cls, value)
        made.text = text
        return made


def written(number: float) -> str:
    """Return a number of a recipe as it stands in the file: a program that reads text gets what was written."""
    return number.text if isinstance(number, (Number, Integer)) else str(number)


@dataclass
class Tree:
    """Plain data of one file: `data` (dict, list, scalars) and the places of keys and values by path."""

    file: str
    data: Any = None
    keys: dict[Key, Source] = field(default_factory=dict)
    values: dict[Key, Source] = field(default_factory=dict)
    problems: list[Diagnostic] = field(default_factory=list)

    def place(self, path: Key) -> Source:
        """Return the place of a value, or of the nearest enclosing thing that has one."""
        while path and path not in self.values:
            path = path[:-1]
        return self.values.get(path, Source(self.file))

    def key_place(self, path: Key) -> Source:
        """Return the place of a mapping key, or of its value where it has no key."""
        return self.keys.get(path) or self.place(path)


def parse_tree(raw: bytes, shown: str) -> Tree:
    """Return the tree of YAML bytes; `shown` is the name used in diagnostics. Raises LcplanError."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.reader import ReaderError

    if len(raw) > MAX_BYTES:
        raise fail("file-too-large", f"{len(raw):,} bytes; at most {MAX_BYTES:,} are read", "", Source(shown))
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = raw.count(b"\n", 0, problem.start) + 1
        column = problem.start - (raw.rfind(b"\n", 0, problem.start) + 1) + 1
        raise fail("not-utf8", f"byte 0x{raw[problem.start]:02x} is not UTF-8", "save the file as UTF-8",
                   Source(shown, line, column)) from problem  # fmt: skip
    if old := _OLD.match(text):
        raise fail("not-yaml", f"the text says that it is YAML {old[1]}, recipes are YAML 1.2",
                   "remove the %YAML line", Source(shown, 1, 1))  # fmt: skip
    try:
        node = YAML(typ="safe", pure=True).compose(text)
    except RecursionError as problem:
        raise fail("too-deep", f"nested deeper than {MAX_DEPTH} levels", "flatten the file", Source(shown)) from problem
    except MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        place = Source(shown, mark.line + 1, mark.column + 1) if mark else Source(shown)
        raise fail("not-yaml", _sentence(problem), "check indentation, quotes and brackets here", place) from problem
    except ReaderError as problem:
        line = text.count("\n", 0, problem.position) + 1
        raise fail("not-yaml", f"a character that YAML does not allow: {problem.reason}", "remove it",
                   Source(shown, line, 1)) from problem  # fmt: skip
    except (YAMLError, ValueError) as problem:
        raise fail("not-yaml", f"the text is no YAML: {problem}", "", Source(shown)) from problem
    tree = Tree(shown)
    builder = _Builder(tree)
    if node is not None:
        tree.data = builder.build(node, (), 0)
    if tree.problems:
        raise LcplanError(*tree.problems)
    return tree


def _sentence(problem: Any) -> str:
    words = " ".join(str(part) for part in (problem.context, problem.problem) if part)
    return re.sub(r"\s+", " ", words) or "the text is no YAML"


class _Builder:
    """Turns composed nodes into plain data; aliases are expanded, so their total is bounded."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.count = 0

    def build(self, node: Node, path: Key, depth: int) -> Any:
        self.count += 1
        place = Source(self.tree.file, node.start_mark.line + 1, node.start_mark.column + 1)
        if self.count > MAX_NODES:
            raise fail("alias-bomb", f"aliases expand to more than {MAX_NODES:,} values", "write fewer aliases", place)
        if depth > MAX_DEPTH:
            raise fail("too-deep", f"nested deeper than {MAX_DEPTH} levels", "flatten the file", place)
        self.tree.values[path] = place
        tag = str(node.tag)
        if tag not in _ACCEPTED:
            short = tag.replace(_CORE, "!!")
            self.tree.problems.append(
                error("yaml-tag", f"the tag {short} is not allowed in a recipe", "write the plain value", place)
            )
            return None
        if node.id == "mapping":
            return self._mapping(node, path, depth)
        if node.id == "sequence":
            return [self.build(item, (*path, i), depth + 1) for i, item in enumerate(node.value)]
        value = _scalar(tag, node.value)
        if isinstance(value, Number) and not isfinite(value):
            self.tree.problems.append(
                error("wrong-type", f"'{value}' is no number that anything here can take", "quote a text", place)
            )
        return value

    def _mapping(self, node: Node, path: Key, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place = Source(self.tree.file, key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            if key_node.id != "scalar":
                self.tree.problems.append(error("key-not-text", "a key must be text", "", place))
                continue
            key = str(key_node.value)
            if str(key_node.tag) == _CORE + "merge":
                merged.update(self._merge(value_node, path, depth, place))
                continue
            if key in made:
                self.tree.problems.append(
                    error("duplicate-key", f"'{key}' is given twice", "keep one", place, self.tree.keys[(*path, key)])
                )
                continue
            self.tree.keys[(*path, key)] = place
            made[key] = self.build(value_node, (*path, key), depth + 1)
        return {**merged, **made}

    def _merge(self, node: Node, path: Key, depth: int, place: Source) -> dict[str, Any]:
        nodes = node.value if node.id == "sequence" else [node]
        made: dict[str, Any] = {}
        for one in reversed(nodes):
            value = self.build(one, path, depth + 1)
            if not isinstance(value, dict):
                self.tree.problems.append(error("bad-merge", "'<<' takes a mapping", "", place))
                continue
            made.update(value)
        return made


def _scalar(tag: str, text: str) -> Any:
    kind = tag.removeprefix(_CORE)
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind == "int":
        plain = text.replace("_", "")
        try:
            value = int(plain, 8 if plain.lstrip("+-").startswith("0o") else 16 if "0x" in plain.lower() else 10)
        except ValueError:
            return text
        return value if str(value) == text else Integer(value, text)
    if kind == "float":
        try:
            return Number(text)
        except ValueError:
            return text
    return text
