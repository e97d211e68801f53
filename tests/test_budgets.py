"""Budgets of start-up and of no-op plans, in CPU seconds: other work on the machine does not count against them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.plan_noop import BUDGET_S, prepare, run


@pytest.mark.parametrize("cells", [1_000, 10_000])
def test_noop_plan(tmp_path: Path, cells: int) -> None:
    prepare(tmp_path, cells)
    run(tmp_path, "plan", "recipes", "--runtime", "sim")
    assert min(run(tmp_path, "plan", "recipes", "--runtime", "sim")[1] for _ in range(4)) < BUDGET_S[cells]


def test_version_costs_next_to_nothing(tmp_path: Path) -> None:
    assert min(run(tmp_path, "version")[1] for _ in range(4)) < 0.06 + 0.05


def test_a_noop_plan_imports_nothing_heavy(tmp_path: Path) -> None:
    import subprocess
    import sys

    prepare(tmp_path, 100)
    run(tmp_path, "plan", "recipes", "--runtime", "sim")
    heavy = ("docker", "deepdiff", "networkx", "pyarrow", "httpx", "aiohttp", "rich", "pydantic", "ruamel", "psutil")
    code = (
        "import sys; from lcplan.cli import run; run(['plan', 'recipes', '--runtime', 'sim']);"
        f"print([m for m in {heavy!r} if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["No changes", "[]"], ran.stdout
