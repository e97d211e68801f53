"""`policy:` in recipes: a plan that breaks it is shown and written, exits 1, and is not applied."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lcplan.record import state
from tests import kit, statekit
from tests.kit import lcplan


class Folder:
    """A folder with a small campaign under a policy."""

    def __init__(self, path: Path, port: int) -> None:
        self.path, self._port = path, port

    def write(self, policy: str, seqs: int = 64, tag: str = "v0.31.0") -> None:
        text = kit.small(self._port, seqs=seqs, extra=f"policy: {policy}")
        image = f"version: 0.31.0, image: 'vllm/vllm-openai:{tag}'"
        (self.path / "campaign.yaml").write_text(text.replace("version: 0.31.0", image))

    def plan(self, *words: str) -> kit.Ran:
        return lcplan("plan", "campaign.yaml", *words, cwd=self.path)

    def apply(self, *words: str) -> kit.Ran:
        return lcplan("apply", "--yes", *words, cwd=self.path)


@pytest.fixture
def folder(tmp_path: Path, port: int) -> Folder:
    return Folder(tmp_path, port)


def test_a_policy_that_holds_says_nothing(folder: Folder) -> None:
    folder.write("{gpu_hours: 100, moving_tags: deny, relaunch_published: deny, max_stale_cells: 0}")
    ran = folder.plan("--runtime", "process")
    assert ran.code == 0 and "policy" not in ran.out + ran.err


@pytest.mark.parametrize(
    ("policy", "tag", "code", "said"),
    [
        ("{gpu_hours: 0.001}", "v0.31.0", "policy-gpu-hours", "GPU-hours, the policy allows 0.001"),
        ("{moving_tags: deny}", "latest", "policy-moving-tag", "the policy denies moving tags: the tag 'latest'"),
    ],
)
def test_a_broken_policy_fails_the_plan_and_its_apply(
    folder: Folder, policy: str, tag: str, code: str, said: str
) -> None:
    folder.write(policy, tag=tag)
    ran = folder.plan("--format", "md")
    assert ran.code == 1 and f"error[{code}]" in ran.err
    assert "apply refuses this plan: " in ran.out and said in ran.out
    assert (folder.path / "plans/plan.json").exists()
    applied = folder.apply("--runtime", "sim")
    assert applied.code == 1 and f"error[{code}]" in applied.err
    assert not (folder.path / "state/runs").exists()


def test_rules_about_records_hold_for_real_ones_only(folder: Folder) -> None:
    folder.write("{}")
    assert folder.plan("--runtime", "sim").code == 0
    assert folder.apply().code == 0
    folder.write("{relaunch_published: deny, max_stale_cells: 0}", seqs=32)
    again = folder.plan("--runtime", "sim")
    assert again.code == 0 and "again (~)" in again.out and "policy" not in again.err


def test_measuring_published_results_again_can_be_denied_or_limited(folder: Folder) -> None:
    folder.write("{}")
    assert folder.plan("--runtime", "process").code == 0
    record(folder.path)
    folder.write("{relaunch_published: deny}", seqs=32)
    ran = folder.plan("--runtime", "process")
    assert ran.code == 1 and "measures 3 recorded cells again" in ran.err and "64 -> 32" in ran.err
    folder.write("{max_stale_cells: 2}", seqs=32)
    ran = folder.plan("--runtime", "process")
    assert ran.code == 1 and "error[policy-stale-cells]: 3 recorded cells" in ran.err
    folder.write("{max_stale_cells: 3}", seqs=32)
    assert folder.plan("--runtime", "process").code == 0


def test_words_of_a_policy_are_checked(folder: Folder) -> None:
    folder.write("{max_stale_cells: -1, relaunch_published: maybe}")
    ran = lcplan("validate", "campaign.yaml", cwd=folder.path)
    assert ran.code == 1 and ran.err.count("error[wrong-type]") == 2


def record(folder: Path) -> None:
    """Record every planned cell as measured for real."""
    plan = json.loads((folder / "plans/plan.json").read_bytes())
    cells = [statekit.cell(one["cell"], **{k: one[k] for k in ("fingerprint", "definition")}) for one in plan["cells"]]
    run = "s__tp1_a__32k__vllm__1010-000210"
    statekit.seal(folder / "state", run, cells=cells, behaviour=plan["launches"][0]["behaviour"], stack="s")
    found, _ = state.rebuild(folder / "state")
    state.save(folder / "state", found)
