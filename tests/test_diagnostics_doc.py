"""Every diagnostic code, class of failure and reason of the project stands in docs/diagnostics.md, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from lcplan.engine.importer.findings import TABLE
from lcplan.engine.logs.failure import FAILURES
from lcplan.workload.validity import Reason

ROOT = Path(__file__).parents[1]
DOC = ROOT / "docs" / "diagnostics.md"
# function -> where its code stands among the arguments
DOORS = {"error": 0, "warning": 0, "note": 0, "fail": 0, "Diagnostic": 1, "StepFailed": 0, "crash": 1, "_result": 2}
CODE = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
ROW = re.compile(r"^\| `([a-z0-9_-]+)` \|", re.MULTILINE)


def codes(source: str) -> Iterator[str]:
    """The literal codes in a module: in calls that make diagnostics or pass a code on, and in triples about one."""
    tree = ast.parse(source)
    doors = dict(DOORS)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names = [one.arg for one in node.args.args if one.arg not in ("self", "cls")]
            if "code" in names:
                doors[node.name] = names.index("code")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in doors and len(node.args) > doors[name]:
                yield from _texts(node.args[doors[name]])
            yield from (text for word in node.keywords if word.arg == "code" for text in _texts(word.value))
        elif isinstance(node, ast.Assign) and any(getattr(target, "id", "") == "code" for target in node.targets):
            yield from _texts(node.value)
        elif isinstance(node, ast.Tuple) and len(node.elts) == 3 and _sentence(node.elts[1]):
            yield from (text for text in _texts(node.elts[0]) if "-" in text)
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and len(node.value.elts) == 3:
            yield from (text for text in _texts(node.value.elts[0]) if "-" in text)


def _texts(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.IfExp):
        yield from (*_texts(node.body), *_texts(node.orelse))
    elif isinstance(node, ast.BoolOp):
        yield from (text for one in node.values for text in _texts(one))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and CODE.fullmatch(node.value):
        yield node.value


def _sentence(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and " " in str(node.value))


def used() -> set[str]:
    # The simulator prints the engines' own errors.
    modules = [path for path in (ROOT / "lcplan").rglob("*.py") if "sim" not in path.relative_to(ROOT).parts]
    return {code for path in modules for code in codes(path.read_text())}


def test_every_code_is_documented() -> None:
    known = {*used(), *TABLE, *FAILURES, *(str(reason) for reason in Reason)}
    missing = known - set(ROW.findall(DOC.read_text()))
    assert not missing, f"add to docs/diagnostics.md: {', '.join(sorted(missing))}"


def test_no_code_is_documented_that_is_not_used() -> None:
    everything = "\n".join(path.read_text() for path in (ROOT / "lcplan").rglob("*.py"))
    gone = {code for code in ROW.findall(DOC.read_text()) if code not in everything}
    assert not gone, f"take out of docs/diagnostics.md: {', '.join(sorted(gone))}"


def test_every_row_is_whole() -> None:
    for line in DOC.read_text().splitlines():
        if ROW.match(line):
            assert line.count("|") - line.count("\\|") == 5 and not re.search(r"\| \|", line), line
