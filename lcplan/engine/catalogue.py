"""Flag catalogues: which flags an engine version has, and what their values mean.

A catalogue is package data, `engine/<kind>/flags/<version>.json`, taken from the parser definition of that release.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lcplan.engine import values

if TYPE_CHECKING:
    from lcplan.engine.parse import Parsed

HERE = Path(__file__).parent
# kind of engine -> (folder, prefix of the file names)
FOLDERS = {
    "vllm": ("vllm", ""),
    "sglang": ("sglang", ""),
    "vllm-bench-serve": ("vllm", "bench-serve-"),
    "vllm-router": ("vllm", "router-"),
}


_JSON = re.compile(r"config$|-args$|kwargs$|overrides$|params$")


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `kind` is value, switch, bool-optional (`--x` / `--no-x`), list, json or positional.

    `name` has no dashes; `aliases` and `negative` are option strings as the engine spells them. `nargs` is argparse's,
    `append` a list made by repeating the flag, `bare` the value that the flag alone stands for (None: needs a value),
    `folded` a choice which the engine compares in lower case with underscores, `json_fields` the known keys of a JSON
    value (empty: any).
    """

    name: str
    aliases: tuple[str, ...]
    kind: str
    type: str
    choices: tuple[Any, ...] | None
    default: Any
    negative: tuple[str, ...]
    nullable: bool
    nargs: str | None = None
    append: bool = False
    bare: Any = None
    folded: bool = False
    json_fields: tuple[str, ...] = ()

    @property
    def option(self) -> str:
        """The full spelling, `--name`."""
        return f"--{self.name}"

    @property
    def json_text(self) -> bool:
        """Whether the flag's text is JSON although its parser takes it as any text (SGLang's config flags)."""
        return self.kind == "value" and self.type == "str" and self.choices is None and bool(_JSON.search(self.name))


class Catalogue:
    """The flags of one engine version. `exact` is False when another version's table stands in for it."""

    def __init__(self, engine: str, version: str, exact: bool, entries: Sequence[Mapping[str, Any]]) -> None:
        self.engine = engine
        self.version = version
        self.exact = exact
        # vLLM's parser turns underscores into dashes before the first dot, the others do not (each table's notes).
        self.underscores = engine in ("vllm", "vllm-bench-serve")
        self._entries = {entry["flag"]: entry for entry in entries if entry["kind"] != "positional"}
        self._options: dict[str, str] = {}  # every option string -> the flag's own
        self._negatives: dict[str, str] = {}
        self._flags: dict[str, Flag] = {}  # read when first asked for: a command uses a few of hundreds
        for option, entry in self._entries.items():
            self._options[option] = option
            self._options.update(dict.fromkeys(entry["aliases"], option))
            self._negatives.update(dict.fromkeys(entry.get("negative", ()), option))

    def names(self) -> list[str]:
        """Return the canonical names, without dashes, in the engine's own order."""
        return [option.lstrip("-") for option in self._entries]

    def find(self, word: str) -> Flag | None:
        """Return the flag meant by `max-model-len`, `--max-model-len`, an alias (`-tp`, `tp`), a `--no-x` form or a
        unique abbreviation, as the engine's own parser would read it; None for unknown and ambiguous words."""
        found = self.match(word)
        return found[0] if found else None

    def match(self, word: str) -> tuple[Flag, bool] | None:
        """Return the flag and whether the word is its negative form (`--no-x`), or None as `find` does."""
        options = [word] if word.startswith("-") else [f"--{word}", f"-{word}"]
        for option in options:
            option = self.fold(option)
            if option in self._options:
                return self._flag(self._options[option]), False
            if option in self._negatives:
                return self._flag(self._negatives[option]), True
        return self._abbreviated(self.fold(options[0]))

    def fold(self, option: str) -> str:
        """Return an option string in the spelling of the table: vLLM's underscores become dashes, before any dot."""
        if not self.underscores or "_" not in option or not option.startswith("--"):
            return option
        head, dot, rest = option.partition(".")
        return head.replace("_", "-") + dot + rest

    def typed(self, flag: Flag, value: Any) -> Any:
        """Return the typed value of a text or of a YAML value. Raises ValueError with a sentence."""
        return values.typed(flag, value, human=values.HUMAN["vllm" if self.underscores else "sglang"])

    def parse(self, tokens: Sequence[str]) -> Parsed:
        """Return flags (canonical names -> typed values), positionals and problems of an engine's arguments."""
        from lcplan.engine.parse import parse

        return parse(self, tokens)

    def _flag(self, option: str) -> Flag:
        if option not in self._flags:
            self._flags[option] = read_flag(self._entries[option])
        return self._flags[option]

    def _abbreviated(self, option: str) -> tuple[Flag, bool] | None:
        if not option.startswith("--") or len(option) < 3:
            return None
        found = {(name, False) for text, name in self._options.items() if text.startswith(option)}
        found |= {(name, True) for text, name in self._negatives.items() if text.startswith(option)}
        if len(found) != 1:
            return None
        name, negated = found.pop()
        return self._flag(name), negated


@cache
def load(engine: str, version: str | None) -> Catalogue:
    """Return the catalogue of an engine version, else of the nearest version with `exact` False.

    An engine whose flags are not known (`openai`) gives an empty catalogue. No version: the newest one.
    """
    if engine not in FOLDERS:
        return Catalogue(engine, version or "", exact=False, entries=())
    wanted = (version or "").removeprefix("v")
    known = versions(engine)
    chosen = wanted if wanted in known else _nearest(wanted, known)
    folder, prefix = FOLDERS[engine]
    raw = json.loads((HERE / folder / "flags" / f"{prefix}{chosen}.json").read_bytes())
    return Catalogue(engine, chosen, chosen == wanted, raw["flags"])


@cache
def versions(engine: str) -> tuple[str, ...]:
    """Return the versions that have a catalogue, oldest first."""
    folder, prefix = FOLDERS[engine]
    pattern = re.compile(re.escape(prefix) + r"(\d[\w.+]*)\.json")
    found = [hit[1] for file in (HERE / folder / "flags").iterdir() if (hit := pattern.fullmatch(file.name))]
    return tuple(sorted(found, key=_order))


def read_flag(entry: Mapping[str, Any]) -> Flag:
    """Return the flag of one entry of a table."""
    choices = entry.get("choices")
    return Flag(
        name=entry["flag"].lstrip("-"),
        aliases=tuple(entry.get("aliases", ())),
        kind=entry["kind"],
        type=entry["type"],
        choices=tuple(choices) if choices else None,
        default=entry.get("default"),
        negative=tuple(entry.get("negative", ())),
        nullable=bool(entry.get("nullable")),
        nargs=entry.get("nargs"),
        append="Append" in entry.get("action", ""),
        bare=entry.get("bare_flag_value"),
        folded="lower-cased" in entry.get("note", ""),
        json_fields=tuple(field["name"] for field in entry.get("json_fields", ())),
    )


def _nearest(wanted: str, known: Sequence[str]) -> str:
    """The newest version that is not newer than the wanted one, else the oldest; the newest for no version number."""
    if not re.match(r"\d+\.\d", wanted):
        return known[-1]
    older = [version for version in known if _order(version) <= _order(wanted)]
    return older[-1] if older else known[0]


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:4])
