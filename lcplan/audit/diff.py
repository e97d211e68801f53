"""The least differences between two runs: settings, what the engine made of them, and results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lcplan.audit.refs import Records

_OF_THE_RUN = frozenset(
    ("run", "times", "lineage", "plan", "recipe", "label", "fingerprint", "argv_template_sha256", "behaviour", "argv",
     "cells", "co_tenants")
)  # fmt: skip
"""What any two runs differ in, or what is compared in a form of its own."""
_PLACE_FLAGS = frozenset(("--host", "--port", "--served-model-name", "--name", "--dist-init-addr", "--nccl-port"))


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference: where (`argv.--max-num-seqs`), both values (None where it is absent), and the sentence."""

    section: str
    path: str
    a: Any
    b: Any

    @property
    def sentence(self) -> str:
        """The difference in words."""
        if self.a is None:
            return f"{self.path}: only in B, {_word(self.b)}"
        if self.b is None:
            return f"{self.path}: only in A, {_word(self.a)}"
        return f"{self.path}: {_word(self.a)} -> {_word(self.b)}{_percent(self.a, self.b)}"

    def as_json(self) -> dict[str, Any]:
        """Return what `runs diff --json` prints for it."""
        return {**asdict(self), "sentence": self.sentence}


def diff(root: Path, a: str, b: str) -> list[Difference]:
    """Return what differs between two runs, settings before results. Raises LcplanError `unknown-run`."""
    from deepdiff import DeepDiff

    records = Records(root)
    one, two = _comparable(records.run(a), a), _comparable(records.run(b), b)
    tree = DeepDiff(one, two, view="tree", ignore_numeric_type_changes=True, threshold_to_diff_deeper=0)
    found = [_difference(change) for kind in tree.values() for change in kind]
    return sorted(found, key=lambda d: (d.section == "results", d.section, d.path))


def _comparable(predicate: Mapping[str, Any], run: str) -> dict[str, Any]:
    made = {key: value for key, value in predicate.items() if key not in _OF_THE_RUN}
    capacity = predicate.get("capacity") or {}
    made["capacity"] = {part: capacity.get(part) for part in ("predicted", "logged", "law")}
    made["argv"] = _flags(predicate.get("argv") or [])
    made["results"] = _results(predicate["cells"])
    return dict(_without_name(made, run))


def _flags(argv: Sequence[str]) -> dict[str, Any]:
    """Return a command line as its words before the first flag and its flags; what belongs to the place is left out."""
    flags: dict[str, Any] = {}
    name = "command"
    for word in argv:
        if re.match(r"--?[A-Za-z]", word):
            name, equals, value = word.partition("=")
            flags.setdefault(name, []).extend([_typed(value)] if equals else [])
        else:
            flags.setdefault(name, []).append(_typed(word))
    return {
        name: (values[0] if len(values) == 1 else values) if values else True
        for name, values in flags.items()
        if name not in _PLACE_FLAGS
    }


def _typed(word: str) -> Any:
    if re.fullmatch(r"-?\d+", word):
        return int(word)
    return float(word) if re.fullmatch(r"-?\d+\.\d+", word) else word


def _results(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        cell["cell"]: {
            "status": cell["status"],
            **{name: metric.get("value") for name, metric in (cell.get("metrics") or {}).items()},
        }
        for cell in cells
    }


def _without_name(value: Any, run: str) -> Any:
    """Return a value with the run's id replaced wherever it stands, so that two runs of one command are equal."""
    if isinstance(value, str):
        return value.replace(run, "@RUN_ID@")
    if isinstance(value, Mapping):
        return {str(key): _without_name(inner, run) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_name(inner, run) for inner in value]
    return value


def _difference(change: Any) -> Difference:
    from deepdiff.helper import notpresent

    path = change.path(output_format="list")
    a, b = (None if value is notpresent else value for value in (change.t1, change.t2))
    return Difference(str(path[0]), ".".join(map(str, path)), a, b)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "set" if value else "not set"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def _percent(a: Any, b: Any) -> str:
    numeric = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (a, b))
    return f" ({(b - a) / abs(a):+.1%})" if numeric and a else ""
