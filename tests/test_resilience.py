"""What an apply survives: full, read-only and shared state directories, dying parts, a clock set back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import filler
from tests.kit import REPO, campaign, lcplan, small, start
from tests.test_apply import until


def runs(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads(lcplan("runs", "list", "--json", cwd=folder).out))


def done(folder: Path) -> Counter[str]:
    return Counter(c["fingerprint"] for run in runs(folder) for c in run["cells"] if c["status"] == "done")


def nothing_left(folder: Path) -> None:
    """No server of the campaign runs."""
    from lcplan.record import state
    from lcplan.runtime.process import RUNTIME

    found, _ = state.load(folder / "state")
    assert found is None or RUNTIME.find(found.lineage) == []


def consistent(folder: Path, cells: int) -> None:
    """Every cell was measured once, and nothing is left of any apply but its records."""
    assert lcplan("plan", "recipes", "--runtime", "sim", cwd=folder).out.startswith("No changes")
    found = done(folder)
    assert len(found) == cells and set(found.values()) == {1}
    ran = lcplan("audit", "verify", cwd=folder)
    assert ran.code == 0, ran.out + ran.err
    assert list((folder / "state/journal").iterdir()) == [] == list((folder / "state/staging").iterdir())
    nothing_left(folder)


def planned(folder: Path, text: str) -> Path:
    campaign(folder / "recipes", text)
    ran = lcplan("plan", "recipes", "--runtime", "sim", cwd=folder)
    assert ran.code == 0, ran.err
    return folder


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A campaign whose state directory is a file system of its own, of two megabytes."""
    state = tmp_path / "state"
    state.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(state)]
    made = subprocess.run(words, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(state)], check=True)


@pytest.mark.parametrize(
    ("op", "phase"),
    [
        ("run", "begin"),
        ("launch", "begin"),
        ("launch", "end"),
        ("measure", "end"),
        ("stop", "begin"),
        ("seal", "begin"),
    ],
)
def test_a_full_disk(small_disk: Path, port: int, op: str, phase: str) -> None:
    planned(small_disk, small(port))
    ran = subprocess.run(
        [sys.executable, "-m", "tests.filler", op, phase, "state", "apply", "--sim-speed", "1000"],
        cwd=small_disk, env={**os.environ, "PYTHONPATH": str(REPO)}, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    assert ran.returncode == 1 and "Traceback" not in ran.stderr, ran.stdout + ran.stderr
    assert "No space left on device" in ran.stdout + ran.stderr
    nothing_left(small_disk)
    (small_disk / "state" / filler.FILLER).unlink()
    again = lcplan("apply", "--sim-speed", "1000", cwd=small_disk)
    assert again.code == 0, again.out + again.err
    consistent(small_disk, 3)


def test_a_full_disk_leaves_no_entry_half_served(small_disk: Path, port: int) -> None:
    planned(small_disk, served(port))
    ran = subprocess.run(
        [sys.executable, "-m", "tests.filler", "serve_start", "begin", "state", "apply", "--sim-speed", "1000"],
        cwd=small_disk, env={**os.environ, "PYTHONPATH": str(REPO)}, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    assert ran.returncode == 1 and "Traceback" not in ran.stderr, ran.stderr
    nothing_left(small_disk)
    (small_disk / "state" / filler.FILLER).unlink()
    assert lcplan("apply", "--sim-speed", "1000", cwd=small_disk).code == 0
    assert lcplan("plan", "recipes", "--runtime", "sim", cwd=small_disk).out.startswith("No changes")
    assert lcplan("destroy", "--yes", cwd=small_disk).code == 0


def test_a_read_only_state_directory(small_disk: Path, port: int) -> None:
    planned(small_disk, small(port))
    assert lcplan("apply", "--sim-speed", "1000", cwd=small_disk).code == 0
    campaign(small_disk / "recipes", small(port, seqs=32))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk / "state")], check=True)
    before = {p: p.stat().st_mtime_ns for p in (small_disk / "state").rglob("*")}
    assert lcplan("plan", "recipes", "--runtime", "sim", cwd=small_disk).code == 0
    for words in (["apply"], ["destroy", "--yes"], ["state", "rebuild"]):
        ran = lcplan(*words, cwd=small_disk)
        assert ran.code == 1 and "error[io]" in ran.err and "Read-only file system" in ran.err, ran.err
    assert {p: p.stat().st_mtime_ns for p in (small_disk / "state").rglob("*")} == before
    nothing_left(small_disk)


def test_two_machines_that_share_a_state_directory(tmp_path: Path, port: int) -> None:
    planned(tmp_path, small(port))
    lock = tmp_path / "state/lock"
    lock.parent.mkdir()
    # Their file system tells this machine nothing of the lock that the other one has.
    there = {"purpose": "lcplan apply", "pid": 1, "host": "node-b", "user": "a", "started": "now", "command": "lcplan"}
    lock.write_text(json.dumps(there))
    ran = lcplan("apply", cwd=tmp_path)
    assert ran.code == 1 and "state-locked" in ran.err and "on node-b" in ran.err and str(lock.name) in ran.err
    assert lock.read_text() == json.dumps(there) and not (tmp_path / "state/runs").exists()
    waiting = start("apply", "--wait", "--sim-speed", "1000", cwd=tmp_path)
    assert waiting.poll() is None
    lock.write_text("")
    assert waiting.wait(timeout=60) == 0
    consistent(tmp_path, 3)


def test_a_lock_whose_holder_died_here_is_free(tmp_path: Path, port: int) -> None:
    import socket

    planned(tmp_path, small(port))
    (tmp_path / "state").mkdir()
    dead = {"purpose": "lcplan apply", "pid": 2**22, "host": socket.gethostname(), "user": "a", "started": "now",
            "command": "lcplan"}  # fmt: skip
    (tmp_path / "state/lock").write_text(json.dumps(dead))
    assert lcplan("apply", "--sim-speed", "1000", cwd=tmp_path).code == 0


def test_a_clock_set_back(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from lcplan.apply import steps

    now = datetime(2026, 5, 4, 12, 0, 0, tzinfo=UTC)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return now

    monkeypatch.setattr(steps, "datetime", Clock)
    names = []
    for seqs, hour in ((64, 12), (32, 11), (16, 12)):
        now = now.replace(hour=hour)
        planned(tmp_path, small(port, seqs=seqs))
        assert lcplan("apply", "--sim-speed", "1000", cwd=tmp_path).code == 0
        consistent_runs = {run["run"] for run in runs(tmp_path)}
        names += consistent_runs - set(names)
    assert [name[-6:] for name in names] == ["120000", "110000", "120001"]
    ledger = [json.loads(line) for line in (tmp_path / "state/ledger.jsonl").read_text().splitlines()]
    assert [entry["run"] for entry in ledger] == names and [entry["seq"] for entry in ledger] == [0, 1, 2]
    before = json.loads((tmp_path / "state/state.json").read_text())["simulated"]["cells"]
    assert lcplan("state", "rebuild", cwd=tmp_path).code == 0
    assert json.loads((tmp_path / "state/state.json").read_text())["simulated"]["cells"] == before
    assert lcplan("audit", "verify", cwd=tmp_path).code == 0


def slow(port: int) -> str:
    """A campaign whose cells take seconds."""
    return small(port).replace("output: 8}", "output: 4000}").replace("32K", "64K")


def measuring(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """Start an apply and return when it measures its first cell."""
    process = start("apply", "--sim-speed", "10", "--json", cwd=folder)
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "progress":
            return process, str(event["run"])
    raise AssertionError("the apply ended before it measured")


def victim(folder: Path, run: str, module: str) -> psutil.Process:
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            if module in words and (run in words or process.cwd() == str(folder)):
                return process
        except psutil.Error:
            continue
    raise AssertionError(f"no {module} runs")


@pytest.mark.parametrize(
    ("module", "said", "rest"),
    [("lcplan.workload.child", "the measuring child", "done"), ("lcplan.sim", "the server", "not_run")],
)
def test_a_part_that_is_killed_fails_its_cell_only(
    tmp_path: Path, port: int, module: str, said: str, rest: str
) -> None:
    planned(tmp_path, slow(port))
    process, run = measuring(tmp_path)
    victim(tmp_path, run, module).kill()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "Traceback" not in err
    (made,) = runs(tmp_path)
    statuses = [cell["status"] for cell in made["cells"]]
    assert statuses == ["failed", rest, rest], out
    shown = json.loads((tmp_path / "state/runs" / run / "manifest.json").read_text())["predicate"]["cells"][0]
    assert said in shown["sentence"]
    nothing_left(tmp_path)
    assert lcplan("apply", "--sim-speed", "1000", cwd=tmp_path).code == 0
    consistent(tmp_path, 3)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_signals_end_an_apply_at_once_and_clean(tmp_path: Path, port: int, number: signal.Signals) -> None:
    planned(tmp_path, slow(port))
    process, _ = measuring(tmp_path)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert [cell["status"] for cell in runs(tmp_path)[0]["cells"]] == ["interrupted", "not_run", "not_run"]
    nothing_left(tmp_path)
    assert list((tmp_path / "state/journal").iterdir()) == []
    assert lcplan("apply", "--sim-speed", "1000", cwd=tmp_path).code == 0
    consistent(tmp_path, 3)


FAULTS = {
    "dies at start": ({"fault": "die_at_start", "class": "oom"}, 60, "memory"),
    "dies while loading": ({"fault": "die_at_start", "class": "worker_died"}, 60, "ended"),
    "never listens": ({"fault": "never_ready"}, 1, "not ready after 1 s"),
    "healthy, but its engine is dead": ({"fault": "hang_engine", "requests": 0}, 5, "health is fine, but no token"),
    "its engine dies while measuring": ({"fault": "hang_engine", "requests": 2}, 60, "no result within"),
    "dies while measuring": ({"fault": "die_while_serving", "requests": 3}, 60, "died"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_engines_that_fail(tmp_path: Path, port: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from lcplan.apply import servers, steps

    fault, limit_s, sentence = FAULTS[name]
    planned(tmp_path, small(port).replace("args: {max", f"ready_timeout_s: {limit_s}, args: {{max"))
    with monkeypatch.context() as patch:
        patch.setenv("LCPLAN_SIM_FAULTS", json.dumps([{"match": "*", **fault}]))
        patch.setattr(servers, "_TOKEN_LIMIT_S", 1.0)
        patch.setattr(steps, "_ALIVE_LIMIT_S", 1.0)
        # A few seconds for a cell, instead of two minutes more than it is estimated to take.
        patch.setattr(steps.estimate, "cell_seconds", lambda *_: -116.0)
        ran = lcplan("apply", "--sim-speed", "1000", cwd=tmp_path)
    assert ran.code == 1 and sentence in ran.out, ran.out
    found = [cell["status"] for cell in runs(tmp_path)[0]["cells"]]
    assert found.count("failed") == 1 and "invalid" not in found, found
    nothing_left(tmp_path)
    planned(tmp_path, small(port))
    assert lcplan("apply", "--sim-speed", "1000", cwd=tmp_path).code == 0
    consistent(tmp_path, 3)


def test_a_stale_server_of_the_same_engine_is_not_taken_for_ours(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lcplan.apply import steps

    planned(tmp_path, small(port))
    argv = ["vllm", "serve", "/models/tiny", "--port", str(port), "--served-model-name", "older"]
    stale = subprocess.Popen([sys.executable, "-m", "lcplan.sim", "--speed", "1000", "--", *argv],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        until(lambda: any(c.laddr.port == port for c in psutil.Process(stale.pid).net_connections()))
        ran = lcplan("apply", cwd=tmp_path)
        assert ran.code == 1 and f"port {port} is taken by process {stale.pid}" in ran.out

        async def nothing(*_: object) -> None:
            """Not seen before the start, and ours never comes to its port: only the list of models tells them apart."""

        monkeypatch.setattr(steps, "require_free", nothing)
        monkeypatch.setenv("LCPLAN_SIM_FAULTS", json.dumps([{"match": "s__*", "fault": "never_ready"}]))
        ran = lcplan("apply", cwd=tmp_path)
        refusals = ("no token was generated", "serves ['older']", "Address already in use")
        assert ran.code == 1 and any(words in ran.out for words in refusals), ran.out
        assert "done: 0 cells measured" in ran.out
        assert stale.poll() is None
    finally:
        stale.kill()
        stale.wait()


def served(port: int, seqs: int = 64) -> str:
    return small(port, seqs=seqs).split("experiments:")[0] + "serve: {chat: {stack: s, quad: b}}\n"


def preempting(port: int) -> str:
    extra = "  second: {stacks: [s], workloads: [w], quad: b, preempt: true, quiet: true}\n"
    return small(port, extra=extra).replace("  first: {stacks: [s], workloads: [w, g], quad: any}\n", "")


SERVE_LINES = {"relaunch": 8, "makes way": 19}
"""Lines of the journal: apply, stop x 2, start, launch x 2, started, apply; 11 more for a launch of one cell."""


def changed(folder: Path, port: int, kind: str) -> None:
    """Serve an entry, then plan what is to happen to it."""
    planned(folder, served(port))
    assert lcplan("apply", "--sim-speed", "1000", cwd=folder).code == 0
    entry = "serve: {chat: {stack: s, quad: b}}\n"
    planned(folder, served(port, seqs=32) if kind == "relaunch" else preempting(port) + entry)


def killed(folder: Path, number: int, when: str) -> int:
    words = [sys.executable, "-m", "tests.killer", str(number), when, "apply", "--sim-speed", "1000"]
    ran = subprocess.run(words, cwd=folder, env={**os.environ, "PYTHONPATH": str(REPO)}, capture_output=True,
                         timeout=120, check=False)  # fmt: skip
    return ran.returncode


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("kind", "number"), [(kind, n) for kind, lines in SERVE_LINES.items() for n in range(1, lines + 1)]
)
def test_an_entry_whose_apply_is_killed_at_every_journal_line(
    tmp_path: Path, port: int, kind: str, number: int, when: str
) -> None:
    changed(tmp_path, port, kind)
    assert killed(tmp_path, number, when) == -9
    try:
        again = lcplan("apply", "--sim-speed", "1000", cwd=tmp_path)
        assert again.code == 0, again.out + again.err
        assert lcplan("plan", "recipes", "--runtime", "sim", cwd=tmp_path).out.startswith("No changes")
        assert list((tmp_path / "state/journal").iterdir()) == []
        from lcplan.record import state
        from lcplan.runtime.process import RUNTIME

        kept, _ = state.load(tmp_path / "state")
        assert kept is not None
        found = RUNTIME.find(kept.lineage)
        assert [one.run for one in found] == [kept.serves["chat"]["run"]]
        assert ("32" in psutil.Process(found[0].handle["pid"]).cmdline()) is (kind == "relaunch")
        assert set(done(tmp_path).values()) == (set() if kind == "relaunch" else {1})
    finally:
        assert lcplan("destroy", "--yes", cwd=tmp_path).code == 0
    nothing_left(tmp_path)


@pytest.mark.parametrize("kind", SERVE_LINES)
def test_the_journal_has_no_other_lines(tmp_path: Path, port: int, kind: str) -> None:
    changed(tmp_path, port, kind)
    assert killed(tmp_path, SERVE_LINES[kind] + 1, "before") == 0
    assert lcplan("destroy", "--yes", cwd=tmp_path).code == 0
