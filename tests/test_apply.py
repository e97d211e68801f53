"""Applying plans on the simulator: what is promised about doing, not doing, refusing, stopping and failing."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit import campaign, lcplan, small, start


@pytest.fixture
def folder(tmp_path: Path, port: int) -> Path:
    """A folder with a small campaign and its plan for the simulator."""
    campaign(tmp_path / "recipes", small(port))
    plan(tmp_path)
    return tmp_path


def plan(folder: Path, *words: str) -> str:
    ran = lcplan("plan", "recipes", "--runtime", "sim", *words, cwd=folder)
    assert ran.code == 0, ran.err
    return ran.out


def runs(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads(lcplan("runs", "list", "--json", cwd=folder).out))


def no_servers_left(folder: Path) -> bool:
    from lcplan.record import state
    from lcplan.runtime.process import RUNTIME

    found, _ = state.load(folder / "state")
    return found is None or RUNTIME.find(found.lineage) == []


def until(done: Callable[[], bool], limit_s: float = 30.0) -> None:
    end = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < end, "the condition never came true"
        time.sleep(0.02)


def test_plan_apply_plan(folder: Path) -> None:
    first = lcplan("apply", cwd=folder)
    assert first.code == 0, first.out + first.err
    assert "done: 3 cells measured" in first.out
    assert plan(folder).startswith("No changes")
    found = runs(folder)
    assert len(found) == 1 and found[0]["simulated"] is True and found[0]["status"] == "done"
    cells = {c["cell"]: c for c in found[0]["cells"]}
    assert set(cells) == {"w", "g.prompt=1024.users=2", "g.prompt=2048.users=1"}
    assert cells["w"]["metrics"]["ttft_s"]["value"] > 0
    assert lcplan("audit", "verify", cwd=folder).code == 0
    assert no_servers_left(folder)
    assert "/journal/" in (folder / "state" / ".gitignore").read_text()


def test_planning_without_changes_touches_nothing(folder: Path) -> None:
    lcplan("apply", cwd=folder)
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    plan(folder)
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*")} == before


def test_second_apply_does_nothing(folder: Path) -> None:
    lcplan("apply", cwd=folder)
    before = (folder / "state" / "state.json").read_bytes(), (folder / "state" / "ledger.jsonl").read_bytes()
    again = lcplan("apply", cwd=folder)
    assert again.code == 0 and "0 cells measured" in again.out
    assert before == ((folder / "state" / "state.json").read_bytes(), (folder / "state" / "ledger.jsonl").read_bytes())


def test_simulated_records_are_not_done_for_a_real_plan(folder: Path) -> None:
    lcplan("apply", cwd=folder)
    ran = lcplan("plan", "recipes", "-o", "real.json", "--json", cwd=folder)
    assert {c["action"] for c in json.loads(ran.out)["cells"]} == {"+"}


def test_a_real_plan_is_rehearsed_as_it_is(folder: Path) -> None:
    lcplan("plan", "recipes", "-o", "real.json", cwd=folder)
    ran = lcplan("apply", "real.json", "--runtime", "sim", cwd=folder)
    assert ran.code == 0, ran.out + ran.err
    assert all(r["simulated"] for r in runs(folder))
    # The rehearsal changed nothing that the plan was made against.
    assert json.loads((folder / "real.json").read_text())["lineage"] is None
    again = lcplan("apply", "real.json", "--runtime", "sim", cwd=folder)
    assert "0 cells measured" in again.out


def test_changed_recipes_make_the_plan_stale(folder: Path, port: int) -> None:
    campaign(folder / "recipes", small(port, seqs=32))
    ran = lcplan("apply", cwd=folder)
    assert ran.code == 1 and "stale-plan" in ran.err and "recipes/campaign.yaml" in ran.err
    assert not (folder / "state" / "runs").exists()


def test_a_comment_does_not(folder: Path, port: int) -> None:
    campaign(folder / "recipes", "# better words\n" + small(port))
    assert lcplan("apply", cwd=folder).code == 0


def test_another_plan_applied_since_makes_it_stale(folder: Path) -> None:
    plan(folder, "--target", "workload=w", "-o", "other.json")
    assert lcplan("apply", "other.json", cwd=folder).code == 0
    ran = lcplan("apply", cwd=folder)
    assert ran.code == 1 and "was applied since" in ran.err


def test_a_state_of_another_lineage_makes_it_stale(folder: Path, port: int) -> None:
    lcplan("apply", cwd=folder)
    campaign(folder / "recipes", small(port, seqs=32))
    plan(folder)
    state = json.loads((folder / "state" / "state.json").read_text())
    ran = lcplan("apply", "--state", "elsewhere", cwd=folder)
    assert ran.code == 1 and f"lineage {state['lineage'][:12]}" in ran.err and "no state" in ran.err


@pytest.mark.parametrize("damage", ["truncated", "edited", "no plan at all"])
def test_damaged_plans_are_refused(folder: Path, damage: str) -> None:
    path = folder / "plans" / "plan.json"
    text = path.read_text()
    path.write_text({"truncated": text[: len(text) // 2], "edited": text.replace('"users":2', '"users":3'),
                     "no plan at all": '{"services": {}}'}[damage])  # fmt: skip
    ran = lcplan("apply", cwd=folder)
    assert ran.code == 1 and "plans/plan.json" in ran.err and "Traceback" not in ran.err
    assert not (folder / "state" / "runs").exists()


def test_a_newer_state_is_refused(folder: Path) -> None:
    lcplan("apply", cwd=folder)
    path = folder / "state" / "state.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 99').replace('"format":1', '"format":99'))
    for words in (["plan", "recipes", "--runtime", "sim"], ["apply"]):
        ran = lcplan(*words, cwd=folder)
        assert ran.code == 1 and "state-newer" in ran.err and "Traceback" not in ran.err


def test_a_damaged_state_is_rebuilt_with_a_warning(folder: Path) -> None:
    lcplan("apply", cwd=folder)
    path = folder / "state" / "state.json"
    path.write_text(path.read_text()[:100])
    ran = lcplan("plan", "recipes", "--runtime", "sim", cwd=folder)
    assert ran.out.startswith("No changes") and "state-rebuilt" in ran.err


def test_the_changed_field_is_named(folder: Path, port: int) -> None:
    lcplan("apply", cwd=folder)
    campaign(folder / "recipes", small(port, seqs=32))
    assert "args.max-num-seqs: 64 -> 32" in plan(folder)
    again = json.loads(lcplan("plan", "recipes", "--runtime", "sim", "--json", cwd=folder).out)
    assert {c["action"] for c in again["cells"]} == {"~"}


def test_detailed_exit_code(folder: Path) -> None:
    words = ["plan", "recipes", "--runtime", "sim", "--detailed-exitcode"]
    assert lcplan(*words, cwd=folder).code == 2
    lcplan("apply", cwd=folder)
    assert lcplan(*words, cwd=folder).code == 0


FAULTS = {
    "never_ready": ({"fault": "never_ready"}, "not ready"),
    "die_at_start": ({"fault": "die_at_start"}, "ended"),
    "die_while_serving": ({"fault": "die_while_serving", "requests": 6}, "died"),
    "wrong_token_counts": ({"fault": "wrong_token_counts", "by": 5}, ""),
    "cached": ({"fault": "cached"}, ""),
}


@pytest.mark.parametrize("name", ["die_at_start", "die_while_serving", "wrong_token_counts", "cached"])
def test_faults_are_recorded_as_what_they_are(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault, _ = FAULTS[name]
    monkeypatch.setenv("LCPLAN_SIM_FAULTS", json.dumps([{"match": "*", **fault}]))
    ran = lcplan("apply", cwd=folder)
    assert ran.code == 1, ran.out
    statuses = {c["cell"]: c["status"] for r in runs(folder) for c in r["cells"]}
    assert set(statuses.values()) - {"done"}, statuses
    assert "done" not in statuses.values() or name == "die_while_serving"
    assert lcplan("audit", "verify", cwd=folder).code == 0
    assert no_servers_left(folder)
    monkeypatch.delenv("LCPLAN_SIM_FAULTS")
    again = json.loads(lcplan("plan", "recipes", "--runtime", "sim", "--json", cwd=folder).out)
    wanted = {c["cell"] for c in again["cells"] if c["action"] == "~"}
    assert wanted == {cell for cell, status in statuses.items() if status != "done"}
    assert lcplan("apply", "plans/plan.json", cwd=folder).code == 0


def test_a_port_that_is_taken_is_named(folder: Path, port: int) -> None:
    import socket

    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        ran = lcplan("apply", cwd=folder)
    assert ran.code == 1 and f"port {port} is taken" in ran.out


def test_two_applies_at_once(folder: Path) -> None:
    from lcplan.record import lock

    with lock.hold(folder / "state", "lcplan apply"):
        ran = lcplan("apply", cwd=folder)
        assert ran.code == 1 and "state-locked" in ran.err and str(os.getpid()) in ran.err
        waiting = start("apply", "--wait", cwd=folder)
    assert waiting.wait(timeout=60) == 0


@pytest.mark.parametrize(("signals", "speed"), [((signal.SIGINT,), "20"), ((signal.SIGINT, signal.SIGINT), "2"),
                                                ((signal.SIGTERM,), "2")])  # fmt: skip
def test_stopping_is_clean(tmp_path: Path, port: int, signals: tuple[signal.Signals, ...], speed: str) -> None:
    text = small(port).replace("output: 8}", "output: 2000}").replace("32K", "64K")
    campaign(tmp_path / "recipes", text)
    plan(tmp_path)
    process = start("apply", "--sim-speed", speed, "--json", cwd=tmp_path)
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "step" and event["op"] == "measure":
            break
    for number in signals:
        process.send_signal(number)
        for line in process.stdout:
            if json.loads(line)["event"] == "stopping":
                break
    rest = process.stdout.read()
    assert process.wait(timeout=60) == 1
    end = json.loads(rest.splitlines()[-1])
    assert end["event"] == "end" and len(end["runs"]) == 1
    statuses = [c["status"] for c in runs(tmp_path)[0]["cells"]]
    if len(signals) == 1 and signals[0] == signal.SIGINT:
        assert statuses.count("done") == 1 and statuses.count("not_run") == 2
    else:
        assert statuses.count("interrupted") == 1 and statuses.count("not_run") == 2
    assert no_servers_left(tmp_path)
    assert lcplan("audit", "verify", cwd=tmp_path).code == 0


def test_a_killed_apply_sends_nothing_more(tmp_path: Path, port: int) -> None:
    campaign(tmp_path / "recipes", small(port).replace("output: 8}", "output: 2000}").replace("32K", "64K"))
    plan(tmp_path)
    process = start("apply", "--sim-speed", "2", "--json", cwd=tmp_path)
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "step" and event["op"] == "measure":
            break
    process.kill()
    process.wait()
    process.stdout.close()
    import psutil

    def measuring() -> bool:
        found = psutil.process_iter(["cmdline", "cwd"])
        return any(
            "lcplan.workload.child" in " ".join(p.info["cmdline"] or []) and str(tmp_path) == p.info["cwd"]
            for p in found
        )

    until(lambda: not measuring())
    ran = lcplan("destroy", "--yes", cwd=tmp_path)
    assert ran.code == 0 and no_servers_left(tmp_path)
