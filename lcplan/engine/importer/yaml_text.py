"""YAML fragments -> Python values, with scalars as written. Templates (`{{ ... }}`) are kept as text."""

from __future__ import annotations

import itertools
import re
import textwrap
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from lcplan.engine.importer.findings import Finding

# The parser reads 0.1 to 0.2 MB a second.
LIMIT = 1 << 16
_DOCUMENT_END = re.compile(r"^(?:---|\.\.\.)(?=[ \t\n]|\Z)", re.MULTILINE)
_ENGINE = re.compile(r"vllm|sglang|sgl-|[-/]sgl", re.IGNORECASE)
_LOOKS = re.compile(
    r"^[ \t]*(?:-[ \t]+)?(?:apiVersion|kind|services|containers|image|command|args|entrypoint|spec|template|"
    r"container_name|environment|env)\s*:(?:\s|$)",
    re.MULTILINE,
)
_TEMPLATE_LINE = re.compile(r"^[ \t]*\{\{[^{}\n]*\}\}[ \t]*$", re.MULTILINE)
_TEMPLATE = re.compile(r"\{\{[^{}\n]*\}\}")
_HELD = re.compile(r"LCTEMPLATE(\d+)END")
_BLOCK_COMMENT = re.compile(r"^[ \t]*#", re.MULTILINE)
_INTEGER = re.compile(r"[-+]?\d{1,18}")
_DEEPEST = 60
_LARGEST = 1 << 16
_REPAIRABLE = 1 << 15


class Scalar(str):
    """A scalar as written. `plain`: without quotes, so that it may be a number or a boolean; `line` counts from 1;
    `source` is the text of a block scalar before folding, else None."""

    __slots__ = ("line", "plain", "source")

    line: int
    plain: bool
    source: str | None

    def __new__(cls, text: str, line: int = 0, *, plain: bool = False, source: str | None = None) -> Scalar:
        self = super().__new__(cls, text)
        self.line, self.plain, self.source = line, plain, source
        return self


@dataclass(slots=True)
class Yaml:
    """The documents of a text, the names of its templates, its comments, and what was odd about it."""

    documents: list[Any]
    comments: list[tuple[int, str]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Source:
    """What nodes were made from: the text, the templates held back, and how many lines stand before it."""

    text: str
    held: list[str]
    first: int


def looks_like_yaml(text: str) -> bool:
    """Return whether a text has the keys of a compose file or a Kubernetes object."""
    found = _LOOKS.search(text)
    return found is not None and not re.match(r"\s*(?:sudo\s+)?(?:docker|podman|nerdctl)\s", text)


def read_yaml(text: str) -> Yaml:
    """Return the documents of a YAML text or fragment; a text that is none gives a finding.

    Of a text longer than LIMIT only documents that name an engine are read, up to LIMIT in all.
    """
    return _read(text, 0) if len(text) <= LIMIT else _parts(text)


def number(value: Any) -> Any:
    """Return a plain scalar that is an integer or a boolean as such, mappings and lists likewise, others as text."""
    if isinstance(value, Scalar):
        if value.plain and _INTEGER.fullmatch(value):
            return int(value)
        if value.plain and value.lower() in ("true", "false"):
            return value.lower() == "true"
        return str(value)
    if isinstance(value, dict):
        return {str(key): number(inner) for key, inner in value.items()}
    return [number(inner) for inner in value] if isinstance(value, list) else value


def _read(text: str, first: int) -> Yaml:
    """The documents of a text that begins after so many lines."""
    if _depth(text) > _DEEPEST:
        return Yaml([], findings=[Finding("unreadable-yaml", "it is nested too deeply")])
    held: list[str] = []

    def hold(found: re.Match[str]) -> str:
        held.append(found[0])
        return f"LCTEMPLATE{len(held) - 1}END"

    plain = _TEMPLATE.sub(hold, _TEMPLATE_LINE.sub("", text.replace("\t", "  ")))
    fault = ""
    for attempt in _repairs(plain):
        try:
            nodes = list(YAML(typ="safe", pure=True).compose_all(attempt))
            for node in nodes:
                _size(node, {})
            source = _Source(attempt, held, first)
            documents = [_value(node, source, {}, 0) for node in nodes if node is not None]
        except (YAMLError, ValueError, RecursionError, AssertionError, TypeError, AttributeError, IndexError) as error:
            fault = fault or str(error).splitlines()[0][:120]
            continue
        return Yaml(documents, _comments(text, first))
    return Yaml([], _comments(text, first), [Finding("unreadable-yaml", fault)])


def _parts(text: str) -> Yaml:
    """The documents of a long text that name an engine, as long as all together are not too large."""
    cuts = [0, *(hit.start() for hit in itertools.islice(_DOCUMENT_END.finditer(text), _LARGEST)), len(text)]
    out, left = Yaml([]), LIMIT
    for begin, end in itertools.pairwise(cuts):
        if not _ENGINE.search(text, begin, end):
            continue
        left -= end - begin
        if left < 0:
            out.findings.append(Finding("yaml-read-in-part", f"{LIMIT >> 10} KiB", text.count("\n", 0, begin) + 1))
            break
        found = _read(text[begin:end], text.count("\n", 0, begin))
        out.documents += found.documents
        out.comments += found.comments
        out.findings += found.findings
    return out


def _depth(text: str) -> int:
    """The deepest nesting of brackets."""
    depth = deepest = 0
    for hit in re.finditer(r"[\[{]|[\]}]", text):
        depth = depth + 1 if hit[0] in "[{" else max(0, depth - 1)
        deepest = max(depth, deepest)
    return deepest


def _repairs(text: str) -> list[str]:
    """The text, and what it may have been before it was cut out of a file."""
    if len(text) > _REPAIRABLE:
        return [text]
    out = [text]
    lines = text.split("\n")
    first = next((i for i, line in enumerate(lines) if line.strip()), 0)
    deeper = [
        len(line) - len(line.lstrip())
        for line in lines[first + 1 :]
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if deeper and not lines[first].rstrip().endswith(":"):
        lines[first] = " " * min(deeper) + lines[first].lstrip()
        out.append("\n".join(lines))
    return out


def _size(node: Node, sizes: dict[int, int]) -> int:
    """The number of nodes after aliases are followed. Raises ValueError for a cycle or an alias bomb."""
    if id(node) in sizes:
        if not sizes[id(node)]:
            raise ValueError("an alias refers to itself")
        return sizes[id(node)]
    sizes[id(node)] = 0
    inner = node.value if isinstance(node, (SequenceNode, MappingNode)) else ()
    total = 1
    for item in inner:
        for child in item if isinstance(item, tuple) else (item,):
            total += _size(child, sizes)
    if total > _LARGEST:
        raise ValueError("aliases make it too large")
    sizes[id(node)] = total
    return total


def _value(node: Node, source: _Source, seen: dict[int, Any], depth: int) -> Any:
    if id(node) in seen:
        return seen[id(node)]
    if depth > _DEEPEST:
        raise ValueError("nested too deeply")
    if isinstance(node, ScalarNode):
        seen[id(node)] = value = _scalar(node, source)
        return value
    if isinstance(node, SequenceNode):
        items: list[Any] = []
        seen[id(node)] = items
        items += [_value(item, source, seen, depth + 1) for item in node.value]
        return items
    assert isinstance(node, MappingNode)
    out: dict[str, Any] = {}
    seen[id(node)] = out
    for key, item in node.value:
        if key.value == "<<":
            merged = _value(item, source, seen, depth + 1)
            for part in merged if isinstance(merged, list) else [merged]:
                if isinstance(part, dict):
                    out.update({name: value for name, value in part.items() if name not in out})
            continue
        name = _value(key, source, seen, depth + 1)
        out[name if isinstance(name, str) else str(name)] = _value(item, source, seen, depth + 1)
    return out


def _scalar(node: ScalarNode, source: _Source) -> Scalar | None:
    if str(node.tag).endswith(":null"):
        return None
    held, block = source.held, None

    def restore(part: str) -> str:
        return _HELD.sub(lambda m: held[int(m[1])] if int(m[1]) < len(held) else m[0], part)

    if node.style in ("|", ">"):
        block = restore(source.text[node.start_mark.index : node.end_mark.index].partition("\n")[2])
    line = source.first + node.start_mark.line + 1
    return Scalar(restore(node.value), line, plain=node.style in (None, ""), source=block)


def _comments(text: str, first: int) -> list[tuple[int, str]]:
    found = []
    for number_, line in enumerate(text.split("\n"), first + 1):
        if line.lstrip().startswith("#"):
            found.append((number_, line.lstrip(" \t#")))
    return found


def without_comments(scalar: Scalar) -> tuple[str, bool]:
    """Return the text of a block scalar without its commented-out lines, and whether there were any."""
    if scalar.source is None or not _BLOCK_COMMENT.search(scalar.source):
        return str(scalar), False
    lines = [line for line in scalar.source.split("\n") if not line.lstrip().startswith("#")]
    return textwrap.dedent("\n".join(lines)), True
