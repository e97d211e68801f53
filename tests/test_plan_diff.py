"""Two plans compared, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

from tests.kit import campaign, lcplan, small


def test_a_plan_does_what_it_does(tmp_path: Path) -> None:
    campaign(tmp_path / "recipes", small(8000))
    lcplan("plan", "recipes", "-o", "a.json", cwd=tmp_path)
    assert lcplan("plan", "diff", "a.json", "a.json", cwd=tmp_path).out == "the plans do the same\n"


def test_what_came_went_and_changed(tmp_path: Path) -> None:
    campaign(tmp_path / "recipes", small(8000))
    lcplan("plan", "recipes", "-o", "a.json", cwd=tmp_path)
    extra = "serve: {chat: {stack: s, quad: b}}\n"
    campaign(tmp_path / "recipes", small(8000, seqs=32, users=3, extra=extra))
    lcplan("plan", "recipes", "-o", "b.json", cwd=tmp_path)
    out = lcplan("diff", "a.json", "b.json", cwd=tmp_path).out
    assert "~ launch s: behaviour.args.max-num-seqs: 64 -> 32" in out
    assert "+ cell s/g.prompt=1024.users=3" in out and "- cell s/g.prompt=1024.users=2" in out
    assert "~ serve chat: absent -> " in out
    found = json.loads(lcplan("diff", "a.json", "b.json", "--json", cwd=tmp_path).out)
    assert found["cells_added"] == ["s/g.prompt=1024.users=3"]
