"""Launch texts -> what the import must read from them, through the command line. A new case needs no code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from lcplan.cli.import_ import register

CASES = Path(__file__).parent / "cases"
# Lists whose order counts; all others compare as sets.
ORDERED = {"gpus", "command", "entrypoint"}


def app() -> typer.Typer:
    made = typer.Typer()
    register(made)
    made.callback()(lambda: None)
    return made


def load(name: str) -> list[dict[str, Any]]:
    return list(json.loads((CASES / name).read_text())["cases"])


def run(text: str) -> tuple[int, dict[str, Any], str]:
    result = CliRunner().invoke(app(), ["import", "-", "--json"], input=text.encode())
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, json.loads(result.stdout), result.stderr


def same(key: str, expected: Any, got: Any) -> bool:
    if isinstance(expected, list) and isinstance(got, list) and key not in ORDERED:
        return sorted(map(json.dumps, expected)) == sorted(map(json.dumps, got))
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    return bool(expected == got)


def differences(expected: dict[str, Any], got: dict[str, Any]) -> list[str]:
    out = []

    def check(path: str, key: str, one: Any, other: Any) -> None:
        if not same(key, one, other):
            out.append(f"{path}: expected {one!r}, got {other!r}")

    for key, value in expected.items():
        if key == "diagnostics":
            out += [f"{key}: {name} is missing in {got[key]}" for name in missing(value, got[key])]
        elif key == "container":
            for name, option in value.items():
                check(f"{key}.{name}", name, option, got[key].get(name))
        elif key == "flags":
            for name in value.keys() | got[key].keys():
                check(f"{key}.{name}", key if not isinstance(value.get(name), dict) else "command",
                      value.get(name, "(absent)"), got[key].get(name, "(absent)"))  # fmt: skip
        elif not (key == "volumes" and value is None):
            check(key, key, value, got.get(key))
    return out


def missing(expected: list[str], got: list[str]) -> list[str]:
    return [name for name in expected if not name.startswith("ERROR") and name not in got]


@pytest.mark.parametrize("file", ["launch.json", "launch_more.json", "launch_by_hand.json"])
def test_every_case(file: str, subtests: Any = None) -> None:
    failures = []
    for case in load(file):
        code, got, errors = run(case["text"])
        expected = case["expected"]
        wrong = differences(expected, got)
        refused = expected["engine"] is None or any(d.startswith("ERROR") for d in expected["diagnostics"])
        if (code == 1) != refused:
            wrong.append(f"exit code {code}: {errors}")
        if refused and "error[" not in errors:
            wrong.append("no message on standard error")
        if wrong:
            failures.append(case["id"] + ":\n    " + "\n    ".join(wrong))
    assert not failures, "\n".join(failures)
