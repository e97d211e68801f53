"""Plans applied with real containers: the image's engine is the simulator, so every record is a simulated one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import docker_kit as kit
from tests.docker import image
from tests.kit import campaign, lcplan, small, start

pytestmark = pytest.mark.docker

KILLED = """
import os, signal, sys
from lcplan.apply.journal import Journal
from lcplan.cli import run
at, write, count = int(sys.argv[1]), Journal.write, 0

def killing(self, op, phase, **data):
    # After the line before an effect, before the line after one: both sides of every effect.
    global count
    count += 1
    if count == at and phase == "end":
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, op, phase, **data)
    if count == at:
        os.kill(os.getpid(), signal.SIGKILL)

Journal.write = killing
code = run(["apply", "--yes"])
print("lines:", count)
sys.exit(code)
"""
"""An apply that is killed at one line of its journal."""

LINES = 13
"""Lines of the journal of an apply of one cell: one before and one after every effect, two of what was learned."""


@pytest.fixture(autouse=True)
def engine() -> Iterator[None]:
    with kit.engine():
        yield


@pytest.fixture
def folder(tmp_path: Path, port: int) -> Path:
    """A folder with a small campaign in containers and its plan."""
    return planned(tmp_path, kit.in_containers(small(port)))


def planned(folder: Path, text: str) -> Path:
    campaign(folder / "recipes", text)
    ran = lcplan("plan", "recipes", cwd=folder)
    assert ran.code == 0, ran.err
    return folder


def apply(folder: Path, code: int = 0) -> str:
    ran = lcplan("apply", "--yes", cwd=folder)
    assert ran.code == code, ran.out + ran.err
    return ran.out


def runs(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads(lcplan("runs", "list", "--json", cwd=folder).out))


def cells(folder: Path) -> list[tuple[str, str]]:
    return sorted((cell["cell"], cell["status"]) for run in runs(folder) for cell in run["cells"])


def manifests(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(p.read_text())["predicate"] for p in sorted(folder.glob("state/runs/*/manifest.json"))]


def consistent(folder: Path) -> None:
    """Nothing is left of an apply but its records."""
    assert kit.ours(kit.lineage_of(folder)) == []
    assert list((folder / "state/journal").iterdir()) == []
    assert list((folder / "state/staging").iterdir()) == []
    verified = lcplan("audit", "verify", cwd=folder)
    assert verified.code == 0, verified.out + verified.err


def test_apply_records_what_ran_and_that_it_was_simulated(folder: Path) -> None:
    out = apply(folder)
    assert "done: 3 cells measured" in out
    assert "recorded as simulated" in out
    (made,) = manifests(folder)
    assert (made["simulated"], made["runtime"], made["speed"]) == (True, "docker", 200.0)
    assert made["image"] == {
        "declared": image.TAG,
        "id": kit.docker("inspect", "--format", "{{.Id}}", image.TAG),
        "digest": None,
    }
    script = next(folder.glob("state/runs/*/cmd.sh")).read_text()
    assert "exec docker run" in script
    assert "was not executed" not in script
    assert "[shutdown]" in next(folder.glob("state/runs/*/server.log")).read_text()
    consistent(folder)


def test_a_simulators_answers_are_no_measurements(folder: Path) -> None:
    apply(folder)
    again = lcplan("plan", "recipes", "-o", "again.json", "--json", cwd=folder)
    assert {cell["action"] for cell in json.loads(again.out)["cells"]} == {"+"}
    assert lcplan("plan", "recipes", "--runtime", "sim", cwd=folder).out.startswith("No changes")


def test_the_same_plan_applied_again_does_nothing(folder: Path) -> None:
    apply(folder)
    assert "0 cells measured, 3 were recorded" in apply(folder)
    assert len(runs(folder)) == 1


def test_a_secret_is_written_nowhere(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_TEST", "hush-5271")
    text = kit.in_containers(small(port)).replace("workloads: [w, g]", "workloads: [w]")
    secret = "layout: tp1, env: {HF_TOKEN: {from_env: SECRET_OF_TEST}},"
    folder = planned(tmp_path, text.replace("layout: tp1,", secret))
    ran = lcplan("apply", "--yes", "--json", cwd=folder)
    assert ran.code == 0, ran.out + ran.err
    assert "hush-5271" not in ran.out + ran.err
    for file in folder.rglob("*"):
        assert not file.is_file() or b"hush-5271" not in file.read_bytes(), file
    assert "-e HF_TOKEN" in next(folder.glob("state/runs/*/cmd.sh")).read_text()


def test_a_rehearsal_before_does_not_count(folder: Path) -> None:
    assert lcplan("apply", "--runtime", "sim", cwd=folder).code == 0
    assert "exec docker run" in next(folder.glob("state/runs/*/cmd.sh")).read_text()
    assert "done: 3 cells measured" in apply(folder)
    assert [made["runtime"] for made in manifests(folder)] == ["sim", "docker"]


@pytest.fixture
def one_cell(tmp_path: Path, port: int) -> Path:
    """A folder with a campaign of one cell in a container and its plan."""
    return planned(tmp_path, kit.in_containers(small(port)).replace("workloads: [w, g]", "workloads: [w]"))


def killed_apply(folder: Path, at: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", KILLED, str(at)], cwd=folder, capture_output=True, text=True, check=False
    )


def test_every_line_of_the_journal_is_tried(one_cell: Path) -> None:
    assert killed_apply(one_cell, LINES + 1).stdout.splitlines()[-1] == f"lines: {LINES}"


@pytest.mark.slow
@pytest.mark.parametrize("at", range(1, LINES + 1))
def test_killed_at_any_line_of_the_journal(one_cell: Path, at: int) -> None:
    folder = one_cell
    assert killed_apply(folder, at).returncode == -signal.SIGKILL
    apply(folder)
    assert [status for _, status in cells(folder)].count("done") == 1
    assert {status for _, status in cells(folder)} <= {"done", "interrupted", "not_run"}
    for made in manifests(folder):
        log = folder / "state/runs" / made["run"] / "server.log"
        assert made["simulated"] or not any(cell["status"] == "done" for cell in made["cells"])
        assert not log.exists() or log.stat().st_size == 0 or "lcplan simulator" in log.read_text()
    consistent(folder)


@pytest.mark.slow
def test_two_hundred_cells(tmp_path: Path, port: int) -> None:
    points = ", ".join(f"{{prompt: {256 + n}, users: {1 + n % 2}}}" for n in range(200))
    text = kit.in_containers(small(port)).replace(
        "points: [{prompt: 1K, users: 2}, {prompt: 2K, users: 1}]", f"points: [{points}]"
    )
    folder = planned(tmp_path, text.replace("workloads: [w, g]", "workloads: [g]"))
    begun = time.monotonic()
    assert "done: 200 cells measured" in apply(folder)
    assert time.monotonic() - begun < 90
    assert cells(folder).count(("g.prompt=256.users=1", "done")) == 1
    consistent(folder)


def test_an_image_that_can_not_be_had_fails_its_launch(tmp_path: Path, port: int) -> None:
    folder = planned(tmp_path, kit.in_containers(small(port), tag="127.0.0.1:1/no/such:v0.31.0"))
    out = apply(folder, code=1)
    assert "resolve failed [image_pull]" in out
    assert {status for _, status in cells(folder)} == {"failed", "not_run"}
    consistent(folder)


@pytest.mark.parametrize("fault", ["die_at_start", "die_while_serving"])
def test_an_engine_that_dies_in_its_container(tmp_path: Path, port: int, fault: str) -> None:
    faults = json.dumps([{"match": "*", "fault": fault, **({"requests": 4} if "while" in fault else {})}])
    text = kit.in_containers(small(port)).replace(
        "layout: tp1,", f"layout: tp1, env: {{LCPLAN_SIM_FAULTS: {json.dumps(faults)}}},"
    )
    folder = planned(tmp_path, text)
    apply(folder, code=1)
    assert "failed" in {status for _, status in cells(folder)}
    (made,) = manifests(folder)
    assert made["simulated"] is True
    assert (folder / "state/runs" / made["run"] / "server.log").stat().st_size > 0
    consistent(folder)


def test_a_container_that_is_removed_by_hand_while_it_is_measured(tmp_path: Path, port: int) -> None:
    text = kit.in_containers(small(port)).replace("output: 8}", "output: 2000}").replace("32K", "64K")
    slow = text.replace("layout: tp1,", 'layout: tp1, env: {LCPLAN_SIM_SPEED: "2"},')
    folder = planned(tmp_path, slow)
    process = start("apply", "--json", cwd=folder)
    kit.docker("rm", "--force", kit.reach(process, "measure"))
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert json.loads(rest.splitlines()[-1])["failed"]
    consistent(folder)


def test_interrupted_twice_stops_the_container(tmp_path: Path, port: int) -> None:
    text = kit.in_containers(small(port)).replace("output: 8}", "output: 2000}").replace("32K", "64K")
    folder = planned(tmp_path, text.replace("layout: tp1,", 'layout: tp1, env: {LCPLAN_SIM_SPEED: "2"},'))
    process = start("apply", "--json", cwd=folder)
    kit.reach(process, "measure")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert {status for _, status in cells(folder)} == {"interrupted", "not_run"}
    consistent(folder)


def test_orphans_of_a_killed_apply_are_found_and_removed(folder: Path) -> None:
    from lcplan.apply import orphans
    from lcplan.apply.events import quiet

    killed_apply(folder, 6)  # the container runs
    (name,) = kit.ours(kit.lineage_of(folder))
    (found,) = [one for one in orphans.orphans() if one.found.run == name]
    assert found.owner == "gone"
    other = start_other_machines_server()
    try:
        assert [one.owner for one in orphans.orphans() if one.found.run == "other"] == ["elsewhere"]
        mine = [one for one in orphans.orphans() if one.found.run in ("other", found.found.run)]
        removed = orphans.remove(folder / "state", mine, False, quiet)
        assert "other" not in [one.found.run for one in removed]
        assert kit.docker("ps", "--quiet", "--filter", "name=^other$")
    finally:
        kit.docker("rm", "--force", other)
    assert found.found.run in [one.found.run for one in removed]
    consistent(folder)


def start_other_machines_server() -> str:
    labels = ["lcplan.run=other", "lcplan.lineage=l", "lcplan.state=another-machine:/state"]
    words = [word for label in labels for word in ("--label", label)]
    return kit.docker("run", "--detach", "--name", "other", *words, image.TAG, "sleep", "60")
