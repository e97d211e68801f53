"""Sealing, ledger, state and lock: what is written once stays, and what a crash leaves is finished."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lcplan.base.diagnostics import LcplanError
from lcplan.record import ledger, lock, manifest, recipes_kept, state
from tests import statekit


def codes(caught: pytest.ExceptionInfo[LcplanError]) -> list[str]:
    return [d.code for d in caught.value.diagnostics]


def test_a_run_is_named_after_its_stack_and_takes_the_next_free_second() -> None:
    now = datetime(2026, 10, 10, 23, 59, 59, tzinfo=UTC)
    args = ("glm53_flash", "tp4", "a", 1048576, "vllm")
    assert manifest.run_id(*args, None, now, lambda _: False) == "glm53_flash__tp4_a__1024k__vllm__1010-235959"
    busy = {"glm53_flash__tp4_a__1024k__vllm__mtp__1010-235959"}
    assert manifest.run_id(*args, "mtp", now, busy.__contains__) == "glm53_flash__tp4_a__1024k__vllm__mtp__1011-000000"
    assert manifest.run_id("m", "tp8", None, 1000000, "sglang", None, now, lambda _: False).startswith(
        "m__tp8__976.562k__"
    )


def test_a_sealed_run_names_every_file_and_is_read_only(tmp_path: Path) -> None:
    statement = statekit.seal(tmp_path)
    names = [s["name"] for s in statement["subject"]]
    assert names == ["cmd.sh", "server.log"]
    folder = manifest.folder(tmp_path, statekit.RUN)
    assert all(not file.stat().st_mode & 0o222 for file in folder.iterdir())
    assert statement == manifest.read(tmp_path, statekit.RUN)
    assert manifest.list_runs(tmp_path) == [statekit.RUN]
    assert [e.kind for e in ledger.read(tmp_path)] == ["sealed"]
    assert not (tmp_path / "staging" / statekit.RUN).exists()


def test_a_run_is_never_written_twice(tmp_path: Path) -> None:
    statekit.seal(tmp_path)
    with pytest.raises(LcplanError) as caught:
        statekit.seal(tmp_path)
    assert codes(caught) == ["run-sealed"]


def test_large_files_are_kept_local_and_out_of_git(tmp_path: Path) -> None:
    staging = tmp_path / "staging" / "big"
    (staging / "metrics").mkdir(parents=True)
    (staging / "metrics/raw.bin").write_bytes(b"x" * (manifest.LOCAL_ABOVE + 1))
    (staging / "cmd.sh").write_text("exec true\n")
    statement = manifest.seal(tmp_path, staging, {"run": "big", "simulated": False, "cells": []})
    kept = {s["name"]: s["annotations"]["kept"] for s in statement["subject"]}
    assert kept == {".gitignore": "git", "cmd.sh": "git", "metrics/raw.bin": "local"}
    assert (tmp_path / "runs/big/.gitignore").read_text() == "/metrics/raw.bin\n"


def test_a_link_cannot_be_sealed(tmp_path: Path) -> None:
    staging = tmp_path / "staging" / "r"
    staging.mkdir(parents=True)
    (staging / "cmd.sh").symlink_to("/etc/passwd")
    with pytest.raises(LcplanError) as caught:
        manifest.seal(tmp_path, staging, {"run": "r", "cells": []})
    assert codes(caught) == ["not-a-plain-file"]


@pytest.mark.parametrize("step", ["ledger.append", "_move", "_make_final", "sync_folder"])
def test_sealing_again_after_a_crash_finishes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    class Crash(BaseException):
        pass

    def crash(*_: object) -> None:
        raise Crash

    staging = tmp_path / "staging" / "r"
    staging.mkdir(parents=True)
    (staging / "cmd.sh").write_text("exec true\n")
    predicate = {"run": "r", "simulated": False, "cells": []}
    with monkeypatch.context() as patch:
        patch.setattr(f"lcplan.record.manifest.{step}", crash)
        with pytest.raises(Crash):
            manifest.seal(tmp_path, staging, predicate)
    if (tmp_path / "runs/r").exists():
        assert manifest.finish(tmp_path) == []
    else:
        manifest.seal(tmp_path, staging, predicate)
    assert manifest.list_runs(tmp_path) == ["r"]
    assert [e.run for e in ledger.read(tmp_path)] == ["r"]
    assert ledger.check(tmp_path) == []


def test_a_run_in_the_ledger_that_was_not_moved_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("lcplan.record.manifest._move", lambda *_: None)
        with pytest.raises(LcplanError):
            statekit.seal(tmp_path)
    assert manifest.list_runs(tmp_path) == []
    assert manifest.finish(tmp_path) == [statekit.RUN]
    assert manifest.read(tmp_path, statekit.RUN)["predicate"]["run"] == statekit.RUN


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"subject": [', "manifest-damaged"),
        ("[]", "manifest-damaged"),
        ('{"predicate": {"run": "other"}, "subject": []}', "manifest-damaged"),
        ('{"predicate": {"run": "r", "simulated": true}, "subject": []}', "manifest-damaged"),
        (None, "manifest-missing"),
    ],
)
def test_a_damaged_manifest_is_a_diagnostic_with_its_place(tmp_path: Path, text: str | None, code: str) -> None:
    file = tmp_path / "runs" / "r" / "manifest.json"
    file.parent.mkdir(parents=True)
    if text is not None:
        file.write_text(text)
    with pytest.raises(LcplanError) as caught:
        manifest.read(tmp_path, "r")
    assert codes(caught) == [code]
    assert caught.value.diagnostics[0].source is not None


@pytest.mark.parametrize("run", ["nope", "../runs", "", "a/b"])
def test_an_unknown_run_is_a_diagnostic(tmp_path: Path, run: str) -> None:
    statekit.seal(tmp_path)
    with pytest.raises(LcplanError) as caught:
        manifest.read(tmp_path, run)
    assert codes(caught) == ["unknown-run"]


def test_threads_append_to_one_chain(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: ledger.append(tmp_path, "sealed", f"r{i}", "0" * 64), range(40)))
    assert [e.seq for e in ledger.read(tmp_path)] == list(range(40))
    assert ledger.check(tmp_path) == []


@pytest.mark.parametrize("kept", range(0, 200, 7))
def test_a_half_written_last_line_is_cut_off(tmp_path: Path, kept: int) -> None:
    ledger.append(tmp_path, "sealed", "a", "0" * 64)
    whole = ledger.path(tmp_path).read_bytes()
    ledger.append(tmp_path, "sealed", "b", "1" * 64)
    ledger.path(tmp_path).write_bytes(ledger.path(tmp_path).read_bytes()[: len(whole) + kept])
    assert [e.run for e in ledger.read(tmp_path)] == ["a"]
    ledger.append(tmp_path, "retracted", "a", why="wrong fan curve")
    assert [e.kind for e in ledger.read(tmp_path)] == ["sealed", "retracted"]
    assert ledger.check(tmp_path) == []
    assert ledger.retracted(tmp_path) == {"a": "wrong fan curve"}


def test_a_last_line_that_lacks_only_its_end_is_kept(tmp_path: Path) -> None:
    ledger.append(tmp_path, "sealed", "a", "0" * 64)
    ledger.path(tmp_path).write_bytes(ledger.path(tmp_path).read_bytes().rstrip(b"\n"))
    assert [e.run for e in ledger.read(tmp_path)] == ["a"]
    ledger.append(tmp_path, "sealed", "b", "1" * 64)
    assert [e.run for e in ledger.read(tmp_path)] == ["a", "b"]


def test_a_damaged_line_inside_the_ledger_is_named(tmp_path: Path) -> None:
    for run in "abc":
        ledger.append(tmp_path, "sealed", run, "0" * 64)
    lines = ledger.path(tmp_path).read_text().splitlines()
    ledger.path(tmp_path).write_text("\n".join([lines[0], "{oops", lines[2]]) + "\n")
    with pytest.raises(LcplanError) as caught:
        ledger.read(tmp_path)
    assert str(caught.value.diagnostics[0].source).endswith("ledger.jsonl:2")
    assert [d.code for d in ledger.check(tmp_path)] == ["ledger-damaged", "ledger-broken"]


def test_the_state_is_one_line_per_cell_and_comes_back_equal(tmp_path: Path) -> None:
    assert state.load(tmp_path) == (None, [])
    statekit.seal(tmp_path, cells=[statekit.cell("needle"), statekit.cell("grid.users=4", "failed")])
    saved = statekit.saved(tmp_path)
    assert state.load(tmp_path) == (saved, [])
    text = state.path(tmp_path).read_text()
    assert json.loads(text)["format"] == 1
    assert sum(statekit.RUN in line for line in text.splitlines()) == 2
    assert state.anchor(tmp_path) == ledger.head(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: text.replace('"done"]', '"done", 3]'),
        lambda text: text.replace('"done"]', '["done"]]'),
        lambda text: text.replace('"done"]', '"fine"]'),
        lambda text: text.replace('"plans": [', '"plans": [{}, '),
        lambda text: text.replace('"format": 1', '"format": "one"'),
        lambda text: text.replace('"real":', '"reel":'),
        lambda text: text.replace("1010-000210", "1010-000211"),
        lambda text: text.replace('"needle"', '<<<<<<< HEAD\n"needle"'),
        lambda text: "[]",
    ],
)
def test_a_damaged_state_is_rebuilt_with_a_warning(tmp_path: Path, damage: object) -> None:
    statekit.seal(tmp_path)
    saved = statekit.saved(tmp_path)
    file = state.path(tmp_path)
    file.write_text(damage(file.read_text()))  # type: ignore[operator]
    loaded, found = state.load(tmp_path)
    assert loaded == saved
    assert [(d.severity, d.code) for d in found] == [("warning", "state-rebuilt")]


def test_a_lost_state_is_rebuilt_and_keeps_what_only_the_history_knows(tmp_path: Path) -> None:
    statekit.seal(tmp_path)
    first = statekit.saved(tmp_path)
    first.serves["chat"] = {"run": "chat"}
    state.note_plan(first.real, "another")
    state.save(tmp_path, first)
    state.note_plan(first.real, "third")
    state.save(tmp_path, first)
    state.path(tmp_path).unlink()
    loaded, found = state.load(tmp_path)
    assert [d.code for d in found] == ["state-rebuilt"]
    assert loaded is not None
    assert loaded.serves == {"chat": {"run": "chat"}}
    assert loaded.real.plans == ["p" * 64, "another"]
    assert loaded.lineage == "5" * 32


def test_a_newer_state_is_refused(tmp_path: Path) -> None:
    statekit.seal(tmp_path)
    statekit.saved(tmp_path)
    file = state.path(tmp_path)
    file.write_text(file.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(LcplanError) as caught:
        state.load(tmp_path)
    assert codes(caught) == ["state-newer"]


def test_the_history_is_capped(tmp_path: Path) -> None:
    made = state.new()
    for number in range(state.HISTORY + 5):
        state.note_plan(made.real, str(number))
        state.save(tmp_path, made)
    kept = sorted((tmp_path / "history").iterdir())
    assert len(kept) == state.HISTORY
    assert kept[-1].name == "000054-000000.json"


def test_a_measured_cell_outlives_a_later_failure_and_falls_back_when_retracted(tmp_path: Path) -> None:
    statekit.seal(tmp_path, "r1")
    statekit.seal(tmp_path, "r2", cells=[statekit.cell("needle", "failed")])
    (record,) = statekit.saved(tmp_path).real.cells.values()
    assert record == ("r1", "needle", "done")
    statekit.seal(tmp_path, "r3")
    (record,) = statekit.saved(tmp_path).real.cells.values()
    assert record.run == "r3"
    ledger.append(tmp_path, "retracted", "r3", why="contaminated")
    (record,) = statekit.saved(tmp_path).real.cells.values()
    assert record == ("r1", "needle", "done")
    ledger.append(tmp_path, "retracted", "r1", why="contaminated")
    (record,) = statekit.saved(tmp_path).real.cells.values()
    assert record == ("r2", "needle", "failed")


def test_simulated_records_stay_apart(tmp_path: Path) -> None:
    statekit.seal(tmp_path, simulated=True)
    saved = statekit.saved(tmp_path)
    assert not saved.real.cells
    assert len(saved.simulated.cells) == 1
    assert (saved.real.serial, saved.simulated.serial) == (0, 1)


def test_the_second_to_ask_learns_who_holds_the_lock(tmp_path: Path) -> None:
    with lock.hold(tmp_path, "lcplan apply"):
        with pytest.raises(LcplanError) as caught, lock.hold(tmp_path, "lcplan apply", wait=0.01):
            pass
        assert codes(caught) == ["state-locked"]
        assert f"process {os.getpid()}" in str(caught.value)
        assert lock.holder(tmp_path) is not None
    assert lock.holder(tmp_path) is None
    with lock.hold(tmp_path, "lcplan apply", wait=True):
        pass


def test_the_kernel_frees_the_lock_of_a_dead_holder(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys, time\nfrom lcplan.record import lock\n"
        "with lock.hold(pathlib.Path(sys.argv[1]), 'lcplan apply'):\n    print(1, flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        holder = lock.holder(tmp_path)
        assert holder is not None
        assert holder.pid == child.pid
        child.kill()
    with lock.hold(tmp_path, "lcplan apply"):
        pass


def test_recipe_lines_are_found_by_hash(tmp_path: Path) -> None:
    sha256 = recipes_kept.keep(tmp_path, statekit.RECIPE)
    assert recipes_kept.keep(tmp_path, statekit.RECIPE) == sha256
    assert recipes_kept.line(tmp_path, sha256, 3) == "  glm53_flash:"
    assert recipes_kept.line(tmp_path, sha256, 300) is None
    assert recipes_kept.line(tmp_path, "../state", 1) is None
