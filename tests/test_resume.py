"""Kill apply with SIGKILL at every line of its journal: the next one loses no cell, repeats none, leaves nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.kit import REPO, campaign, lcplan, small

LINES = 17
"""Lines of the journal of the small campaign: apply, run, launch x 2, learned x 2, three cells x 2, stop x 2, seal x 2,
apply."""


def killed(folder: Path, number: int, when: str) -> int:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.killer", str(number), when, "apply", "--sim-speed", "1000"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(REPO)}, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    return ran.returncode


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, LINES + 1))
def test_kill_at_every_journal_line(tmp_path: Path, port: int, number: int, when: str) -> None:
    campaign(tmp_path / "recipes", small(port))
    assert lcplan("plan", "recipes", "--runtime", "sim", cwd=tmp_path).code == 0
    code = killed(tmp_path, number, when)
    assert code == -9
    ran = lcplan("apply", "--sim-speed", "1000", cwd=tmp_path)
    assert ran.code == 0, ran.out + ran.err
    assert lcplan("plan", "recipes", "--runtime", "sim", cwd=tmp_path).out.startswith("No changes")
    done = Counter(
        cell["fingerprint"]
        for run in json.loads(lcplan("runs", "list", "--json", cwd=tmp_path).out)
        for cell in run["cells"]
        if cell["status"] == "done"
    )
    assert len(done) == 3 and set(done.values()) == {1}
    assert lcplan("audit", "verify", cwd=tmp_path).code == 0
    assert list((tmp_path / "state" / "journal").iterdir()) == []
    assert list((tmp_path / "state" / "staging").iterdir()) == []
    from lcplan.record import state
    from lcplan.runtime.process import RUNTIME

    found, warnings = state.load(tmp_path / "state")
    assert found is not None and not warnings and RUNTIME.find(found.lineage) == []


def test_the_journal_has_no_other_lines(tmp_path: Path, port: int) -> None:
    campaign(tmp_path / "recipes", small(port))
    lcplan("plan", "recipes", "--runtime", "sim", cwd=tmp_path)
    assert killed(tmp_path, LINES + 1, "before") == 0
