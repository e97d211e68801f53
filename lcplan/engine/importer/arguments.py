"""An engine's arguments as the import's fields: values as written, names spelled out."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lcplan.engine import catalogue as catalogues
from lcplan.engine.importer.findings import Finding
from lcplan.engine.importer.words import Word
from lcplan.engine.vllm.removed import REMOVED_FLAGS

if TYPE_CHECKING:
    from lcplan.engine.catalogue import Catalogue, Flag

SECRET_FLAGS = frozenset(("api-key", "admin-api-key", "hf-token", "ssl-keyfile-password"))
SECRET = "<secret>"
# Flags with a field of their own: canonical flag name -> field.
FIELDS: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "model": "model",
        "served-model-name": "served_model_name",
        "tensor-parallel-size": "tp",
        "data-parallel-size": "dp",
        "pipeline-parallel-size": "pp",
        "enable-expert-parallel": "ep",
        "decode-context-parallel-size": "dcp",
        "nnodes": "nnodes",
        "node-rank": "node_rank",
        "max-model-len": "max_model_len",
        "max-num-seqs": "max_num_seqs",
        "gpu-memory-utilization": "gpu_mem_util",
        "kv-cache-dtype": "kv_cache_dtype",
        "port": "listen_port",
    },
    "sglang": {
        "model-path": "model",
        "served-model-name": "served_model_name",
        "tp-size": "tp",
        "dp-size": "dp",
        "pp-size": "pp",
        "ep-size": "ep",
        "dcp-size": "dcp",
        "nnodes": "nnodes",
        "node-rank": "node_rank",
        "context-length": "max_model_len",
        "max-running-requests": "max_num_seqs",
        "mem-fraction-static": "gpu_mem_util",
        "kv-cache-dtype": "kv_cache_dtype",
        "port": "listen_port",
    },
}
_INTEGERS = {"tp", "dp", "pp", "ep", "dcp", "nnodes", "node_rank", "max_model_len", "max_num_seqs", "listen_port"}
# Spellings that engines accept only in some versions, or that people use for the same thing.
_SPELLINGS = {
    "vllm": {"-ep": "enable-expert-parallel", "--pp": "pipeline-parallel-size", "--dp": "data-parallel-size"},
    "sglang": {"--pp": "pp-size", "--tp": "tp-size", "--dp": "dp-size", "--pipeline-parallel-size": "pp-size"},
}
# A launch has a few hundred words at most.
LONGEST = 4_000
_NUMBER = re.compile(r"-(\d+|\d*\.\d+)([eE][-+]?\d+)?")
_GLUED = re.compile(r"(?<=[^\s=-])(--[a-z][A-Za-z0-9_]*(?:-[A-Za-z0-9_]+)*)(?=--|[=.]|$)")
_GLUED_VALUE = re.compile(r"(--[A-Za-z][A-Za-z_-]*[a-z])(\d[\w.]*)")
_GLUED_LONGEST = 4096
_ARGS = re.compile(r"ARG|OPT|FLAG|EXTRA|PARAM|[@*]", re.IGNORECASE)
_ELLIPSIS = re.compile(r"\.{3}|…|\[(?:\.\.\.|…|[A-Z_ ]*(?:OPTIONS|ARGS|FLAGS)[A-Z_ ]*)\]|<(?:\.\.\.|…)>")


@dataclass(slots=True)
class Arguments:
    """The fields of an engine's arguments, the other flags, and the tokens as the engine would get them."""

    fields: dict[str, Any] = field(default_factory=dict)
    flags: dict[str, Any] = field(default_factory=dict)
    tokens: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    secrets: set[str] = field(default_factory=set)


def read_arguments(engine: str, words: list[Word], *, positional: bool) -> Arguments:
    """Return what an engine's arguments say. `positional`: the first plain word may be the model."""
    reader = _Reader(engine, catalogues.load(engine, None), words, positional)
    reader.read()
    return reader.out


def engine_of_flags(words: list[Word]) -> str | None:
    """Return the one engine whose catalogue knows flags here that the other does not, or None."""
    known = dict.fromkeys(FIELDS, 0)
    for word in words[:200]:
        if not word.startswith("-") or len(word) < 2:
            continue
        head = word.partition("=")[0].partition(".")[0].replace("_", "-")
        owners = [
            e for e in FIELDS if catalogues.load(e, None).match(head) or (e == "vllm" and head[2:] in REMOVED_FLAGS)
        ]
        if len(owners) == 1:
            known[owners[0]] += 1
    best = max(known, key=lambda engine: known[engine])
    return best if known[best] > min(known.values()) else None


class _Reader:
    def __init__(self, engine: str, catalogue: Catalogue, words: list[Word], positional: bool) -> None:
        self.engine = engine
        self.catalogue = catalogue
        self.positional = positional
        self.out = Arguments()
        self.given: set[str] = set()
        self.at = 0
        self.matches: dict[str, tuple[Flag, bool] | None] = {}
        if len(words) > LONGEST:
            self.find("text-too-large", f"{LONGEST} words of one command")
        self.words = self.separated(words[:LONGEST])

    def read(self) -> None:
        while self.at < len(self.words):
            word = self.words[self.at]
            self.at += 1
            if _ELLIPSIS.fullmatch(word):
                self.find("elided-arguments", word)
                if word == self.words[0]:
                    self.positional = False
            elif self.is_option(word):
                self.option(word)
            elif not word.strip():
                continue
            else:
                self.plain(word)

    def match(self, option: str) -> tuple[Flag, bool] | None:
        """The flag an option names in the newest version that has it."""
        if option not in self.matches:
            known = (catalogues.load(self.engine, version) for version in reversed(catalogues.versions(self.engine)))
            self.matches[option] = next((found for one in known if (found := one.match(option))), None)
        return self.matches[option]

    def separated(self, words: list[Word]) -> list[Word]:
        """Split words that are two flags, or a value and a flag, without a blank between them."""
        out: list[Word] = []
        for word in words:
            if word.glued:
                self.find("glued-flags", word)
            rest: str = word
            if "--" in rest[1:] and len(rest) < _GLUED_LONGEST and not any(c in rest for c in " {"):
                cuts = [hit.start() for hit in _GLUED.finditer(rest) if self.match(hit[1])]
                for begin, end in itertools.pairwise([0, *cuts]):
                    out.append(word.like(rest[begin:end]))
                if cuts:
                    rest = rest[cuts[-1] :]
                    self.find("glued-flags", Word(rest, word.line))
            tail = _GLUED_VALUE.fullmatch(rest)
            flag = self.match(tail[1]) if tail and not self.match(rest) else None
            if tail and flag and flag[0].kind == "value":
                self.find("glued-flags", Word(tail[2], word.line))
                out.append(word.like(tail[1]))
                rest = tail[2]
            out.append(word if rest is word else word.like(rest))
        return out

    def plain(self, word: Word) -> None:
        if self.positional and "model" not in self.out.fields and not (word.hole and _ARGS.search(word)):
            self.positional = False
            self.out.tokens.append(str(word))
            self.out.fields["model"] = str(word)
        elif word.hole:
            self.find("unresolved-variable-may-hold-flags", ",".join(word.names))
        else:
            self.find("unexpected-argument", word)

    def option(self, word: Word) -> None:
        head, equals, tail = word.partition("=")
        explicit = tail if equals else None
        if " " in head.strip():
            self.find("argument-contains-space", word[:60])
            self.put(re.sub(r"^-+", "", word), True)
            return
        level = re.fullmatch(r"-O=?(\d)", word)
        if level and self.engine == "vllm":
            self.out.tokens.append(str(word))
            self.put("optimization-level", level[1])
            return
        head = (
            head.replace("_", "-")
            if "." not in head
            else head.partition(".")[0].replace("_", "-") + head[head.index(".") :]
        )
        root, dot, path = head.partition(".")
        spelled = _SPELLINGS[self.engine].get(root)
        removed = self.engine == "vllm" and root.removeprefix("--") in REMOVED_FLAGS
        found = None if removed else self.match(f"--{spelled}" if spelled else root)
        if found is None and not head.startswith("--") and len(root) > 2 and not dot:
            found = self.match(f"-{root}")
            short = self.match(root[:2])
            if found is None and short and short[0].kind == "value":
                found, explicit = short, word[2:].removeprefix("=")
        flag, negated = found or (None, False)
        name = flag.name if flag and not negated else head.lstrip("-")
        if flag and negated:
            name = flag.negative[0].lstrip("-") if len(flag.negative) == 1 else name
        if flag is None and self.engine == "vllm" and name in REMOVED_FLAGS:
            self.find("flag-removed-in-later-versions", name)
        self.out.tokens.append(f"--{name}" + (f".{path}" if dot and flag else ""))
        if dot and path:
            self.dotted(flag.name if flag else root.lstrip("-"), path, explicit)
            return
        if negated:
            self.put(name, True)
            return
        self.valued(flag, name, explicit)

    def valued(self, flag: Flag | None, name: str, explicit: str | None) -> None:
        kind = flag.kind if flag else ("switch" if name in REMOVED_FLAGS and not REMOVED_FLAGS[name] else "value")
        if kind in ("switch", "bool-optional"):
            following = self.words[self.at].lower() if explicit is None and self.at < len(self.words) else ""
            if following in ("true", "false"):
                explicit = str(self.words[self.at])
                self.at += 1
            if explicit is None or explicit.lower() == "true":
                self.put(name, True)
            else:
                self.put(name, explicit)
            return
        values = [] if explicit is None else [explicit]
        waiting = self.positional and "model" not in self.out.fields
        many = not waiting if flag is None else flag.kind == "list" and not flag.append
        while explicit is None and self.at < len(self.words) and (many or not values):
            following_word = self.words[self.at]
            if self.is_option(following_word) or (following_word.hole and many and values):
                break
            values.append(str(following_word))
            self.at += 1
        if name in SECRET_FLAGS and any(values):
            self.find("secret-on-command-line", name)
            self.out.tokens.append(SECRET)
            self.out.secrets.update(values)
            self.put(name, SECRET)
            return
        if explicit is not None and explicit.startswith("-"):
            self.out.tokens[-1] += f"={explicit}"
        else:
            self.out.tokens += values
        parsed = [_json(value) for value in values]
        if flag is not None and flag.append and name in self.out.flags:
            before = self.out.flags[name]
            self.out.flags[name] = [*(before if isinstance(before, list) else [before]), *parsed]
            return
        self.put(name, True if not values else parsed[0] if len(parsed) == 1 else parsed)

    def dotted(self, name: str, path: str, explicit: str | None) -> None:
        if explicit is None:
            explicit = "true"
            if self.at < len(self.words) and not self.is_option(self.words[self.at]):
                explicit = str(self.words[self.at])
                self.at += 1
            elif self.at >= len(self.words):
                explicit = "true"
        self.out.tokens.append(explicit)
        keys = path.removesuffix("+").split(".")
        value: Any = _typed(explicit)
        node = self.out.flags.get(name)
        if not isinstance(node, dict):
            node = self.out.flags[name] = {}
        for key in keys[:-1]:
            inner = node.setdefault(key, {})
            node = inner if isinstance(inner, dict) else node
        if path.endswith("+"):
            before = node.get(keys[-1])
            value = [*(before if isinstance(before, list) else []), *map(_typed, explicit.split(","))]
        node[keys[-1]] = value

    def put(self, name: str, value: Any) -> None:
        if name in self.given:
            self.find("duplicate-flag", name)
        self.given.add(name)
        key = FIELDS[self.engine].get(name)
        if key is None or (key == "ep" and value not in (True,) and self.engine == "vllm"):
            self.out.flags[name] = value
            return
        self.out.fields[key] = self.field_value(key, name, value)

    def field_value(self, key: str, name: str, value: Any) -> Any:
        """Integers and numbers as the engine reads them; what cannot be read, or is not known yet, stays as text."""
        if (
            not isinstance(value, str)
            or "$" in value
            or "{{" in value
            or not (key in _INTEGERS or key == "gpu_mem_util")
        ):
            return value if not isinstance(value, (dict, int)) or value is True else json.dumps(value)
        flag = self.match(f"--{name}")
        try:
            typed = self.catalogue.typed(flag[0], value) if flag else value
        except ValueError as fault:
            if re.search(r"\d", value):
                self.find("bad-value", str(fault))
            return value
        return typed

    def is_option(self, word: str) -> bool:
        return len(word) > 1 and word[0] == "-" and not _NUMBER.fullmatch(word)

    def find(self, code: Any, about: str) -> None:
        here = self.words[self.at - 1].line if self.at else 0
        line = about.line if isinstance(about, Word) else here
        self.out.findings.append(Finding(code, str(about), line))


def _json(value: str) -> Any:
    """A JSON object or list as such; anything else as written."""
    text = value.strip()
    if not text or text[0] not in "{[" or text[-1] not in "}]":
        return value
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return value


def _typed(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return {"True": True, "False": False}.get(value, value)
