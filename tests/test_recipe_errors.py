"""Bad recipes: a code, a place, a sentence and a hint; exit 1; no traceback. One data file, a case needs no code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.kit import lcplan, small

CASES: list[dict[str, Any]] = YAML(typ="safe").load(Path(__file__).parent / "cases" / "bad_recipes.yaml")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["name"])
def test_bad_recipe_is_refused_with_its_place(case: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "recipes"
    folder.mkdir()
    if not case.get("alone"):
        (folder / "base.yaml").write_text(small(8000))
    for name, text in case.get("files", {}).items():
        (folder / name).write_text(text)
    for name, digits in case.get("bytes", {}).items():
        (folder / name).write_bytes(bytes.fromhex(digits))
    ran = lcplan("validate", str(folder))
    assert ran.code == 1
    code, _, place = case["expect"].partition(" ")
    first = ran.err.splitlines()[0]
    assert f"error[{code}]" in first, ran.err
    if place:
        assert first.startswith(f"{folder}/{place}"), ran.err
    assert "Traceback" not in ran.err
    assert case.get("says", "").replace("{dir}", str(folder)) in ran.err
    assert case.get("never", "\0") not in ran.err + ran.out


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["name"])
def test_json_says_the_same(case: dict[str, Any], tmp_path: Path) -> None:
    import json

    folder = tmp_path / "recipes"
    folder.mkdir()
    if not case.get("alone"):
        (folder / "base.yaml").write_text(small(8000))
    for name, text in case.get("files", {}).items():
        (folder / name).write_text(text)
    for name, digits in case.get("bytes", {}).items():
        (folder / name).write_bytes(bytes.fromhex(digits))
    ran = lcplan("validate", str(folder), "--json")
    found = json.loads(ran.out)
    assert ran.code == 1 and found["valid"] is False
    assert found["diagnostics"][0]["code"] == case["expect"].split()[0]
