"""`audit verify`: every kind of tampering is named, one by one; what is whole passes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lcplan.audit.verify import verify
from lcplan.base.canonical import digest_bytes, dumps
from lcplan.base.diagnostics import LcplanError
from lcplan.record import ledger, manifest, state
from tests import statekit

RUN = statekit.RUN
OTHER = RUN.replace("000210", "000211")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    statekit.seal(tmp_path)
    statekit.seal(tmp_path, OTHER, cells=[statekit.cell("grid.users=4"), statekit.cell("grid.users=8", "failed")])
    statekit.saved(tmp_path)
    return tmp_path


def write(file: Path, text: str) -> None:
    file.chmod(0o644)
    file.write_text(text)


def codes(root: Path) -> list[str]:
    return [d.code for d in verify(root).findings]


def tamper_file(root: Path) -> None:
    write(root / "runs" / RUN / "server.log", "nothing to see")


def lose_file(root: Path) -> None:
    (root / "runs" / RUN / "cmd.sh").unlink()


def add_file(root: Path) -> None:
    (root / "runs" / RUN / "bench").mkdir()
    (root / "runs" / RUN / "bench" / "better.json").write_text("{}")


def lose_run(root: Path) -> None:
    shutil.rmtree(root / "runs" / RUN)


def add_run(root: Path) -> None:
    shutil.copytree(root / "runs" / RUN, root / "runs" / "copy")
    file = root / "runs/copy/manifest.json"
    write(file, file.read_text().replace(RUN, "copy"))


def reseal(root: Path) -> None:
    """Change a file and make the manifest agree with it again."""
    file = root / "runs" / RUN / "server.log"
    write(file, "better")
    statement = json.loads((file.parent / "manifest.json").read_text())
    for subject in statement["subject"]:
        if subject["name"] == "server.log":
            subject["digest"]["sha256"] = digest_bytes(b"better")
    write(file.parent / "manifest.json", json.dumps(statement))


def reseal_and_rewrite_the_ledger(root: Path) -> None:
    """Make the ledger agree as well, hash chain and all."""
    reseal(root)
    lines, prev = [], ledger.GENESIS
    for line in ledger.path(root).read_text().splitlines():
        event = json.loads(line) | {"prev": prev}
        if event["run"] == RUN:
            event["manifest_sha256"] = digest_bytes((root / "runs" / RUN / "manifest.json").read_bytes())
        lines.append(dumps(event))
        prev = digest_bytes(lines[-1].encode())
    ledger.path(root).write_text("\n".join(lines) + "\n")


def damage_manifest(root: Path) -> None:
    write(root / "runs" / RUN / "manifest.json", "{")


def lose_manifest(root: Path) -> None:
    (root / "runs" / RUN / "manifest.json").unlink()


def change_the_ledger(root: Path) -> None:
    file = ledger.path(root)
    file.write_text(file.read_text().replace('"why":""', '"why":"none"', 1))


def drop_a_ledger_line(root: Path) -> None:
    file = ledger.path(root)
    file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))


def cut_the_ledger(root: Path) -> None:
    file = ledger.path(root)
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))


def change_the_state(root: Path) -> None:
    file = state.path(root)
    file.write_text(file.read_text().replace('"failed"', '"done"'))


def damage_the_state(root: Path) -> None:
    state.path(root).write_text("{")


def tamper_recipe(root: Path) -> None:
    (recipe,) = (root / "recipes").iterdir()
    write(recipe, "lcplan: 1\n")


@pytest.mark.parametrize(
    ("tampering", "expected"),
    [
        (tamper_file, ["file-tampered"]),
        (lose_file, ["file-missing"]),
        (add_file, ["file-extra"]),
        (lose_run, ["state-damaged", "run-missing"]),
        (add_run, ["run-extra"]),
        (reseal, ["run-resealed"]),
        (reseal_and_rewrite_the_ledger, ["ledger-rewritten"]),
        (damage_manifest, ["run-resealed", "manifest-damaged"]),
        (lose_manifest, ["manifest-missing"]),
        (change_the_ledger, ["ledger-broken"]),
        (drop_a_ledger_line, ["run-extra", "ledger-broken", "ledger-rewritten"]),
        (cut_the_ledger, ["run-extra", "ledger-rewritten"]),
        (change_the_state, ["state-disagrees"]),
        (damage_the_state, ["state-damaged"]),
        (tamper_recipe, ["recipe-tampered"]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_tampering_is_named(root: Path, tampering: Callable[[Path], None], expected: list[str]) -> None:
    assert codes(root) == []
    tampering(root)
    assert codes(root) == expected
    assert all(d.source and d.severity == "error" for d in verify(root).findings)


def test_every_fault_is_named_for_itself(root: Path) -> None:
    for fault in (tamper_file, lose_file, add_file):
        fault(root)
    found = verify(root)
    assert sorted(d.code for d in found.findings) == ["file-extra", "file-missing", "file-tampered"]
    assert verify(root, [OTHER]).findings == []


def test_what_is_counted(root: Path) -> None:
    done = verify(root)
    sizes = [f.stat().st_size for f in root.glob("runs/*/*") if f.name != manifest.NAME]
    assert (done.runs, done.files, done.bytes) == (2, 4, sum(sizes))


def test_a_local_file_is_not_missing_elsewhere_but_tampering_shows(tmp_path: Path) -> None:
    staging = tmp_path / "staging" / "big"
    staging.mkdir(parents=True)
    (staging / "requests.parquet").write_bytes(b"x" * (manifest.LOCAL_ABOVE + 1))
    manifest.seal(tmp_path, staging, {"run": "big", "simulated": False, "cells": []})
    file = tmp_path / "runs/big/requests.parquet"
    file.chmod(0o644)
    file.write_bytes(b"y")
    assert codes(tmp_path) == ["file-tampered"]
    file.unlink()
    done = verify(tmp_path)
    assert (done.findings, done.local) == ([], 1)


def test_a_retraction_keeps_the_state_true(root: Path) -> None:
    ledger.append(root, "retracted", RUN, why="wrong model")
    statekit.saved(root)
    assert codes(root) == []


def test_no_state_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LcplanError) as caught:
        verify(tmp_path / "nowhere")
    assert caught.value.diagnostics[0].code == "no-state"
