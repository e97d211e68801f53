"""A planted secret reaches the process and nothing else: no file, no output, no command line of any process."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.kit import REPO, campaign, lcplan, small, start

VALUE = "hush-5271-planted"
NAMES = ("HF_TOKEN", "CHATTY", "VLLM_API_KEY")
"""One that an engine needs, one that ours prints, one that clients must know."""
ENV = f"env: {{{', '.join(f'{name}: {{from_env: SECRET_OF_TEST}}' for name in NAMES)}}}, args: {{max"


@pytest.fixture
def folder(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A campaign and a serve entry with a secret; engines of it print their environment, as SGLang prints its key."""
    monkeypatch.setenv("SECRET_OF_TEST", VALUE)
    (tmp_path / "bin").mkdir()
    engine = tmp_path / "bin/vllm"
    engine.write_text(
        f'#!/bin/sh\necho "server_args: api_key=$CHATTY,"\n'
        f'PYTHONPATH={REPO} exec {sys.executable} -m lcplan.sim --speed 1000 -- vllm "$@"\n'
    )
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    text = small(port, quad="a").replace("args: {max", ENV)
    campaign(tmp_path / "recipes", text + "serve: {chat: {stack: s, quad: b}}\n")
    yield tmp_path
    lcplan("destroy", "--yes", cwd=tmp_path)


def holders(folder: Path) -> list[str]:
    """Return the files that hold the secret."""
    raw = VALUE.encode()
    return [str(path) for path in folder.rglob("*") if path.is_file() and raw in path.read_bytes()]


def visible() -> list[list[str]]:
    """Return the command lines that show it."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if any(VALUE in word for word in words):
            found.append(words)
    return found


@pytest.mark.parametrize("runtime", ["sim", "process"])
def test_a_planted_secret_is_written_nowhere(folder: Path, runtime: str) -> None:
    said = []

    def run(*words: str) -> None:
        ran = lcplan(*words, cwd=folder)
        said.append(ran.out + ran.err)

    run("plan", "recipes", "--runtime", runtime)
    run("plan", "recipes", "--runtime", runtime, "--json")
    process = start("apply", "--json", cwd=folder)
    shown = []
    assert process.stdout is not None and process.stderr is not None
    for line in process.stdout:
        shown += visible()
        said.append(line)
    said.append(process.stderr.read())
    assert process.wait() == 0, said
    run("plan", "recipes", "--runtime", runtime)
    for words in (["runs", "list", "--json"], ["state", "show", "--json"], ["state", "orphans", "--json"],
                  ["audit", "coverage"], ["show"]):  # fmt: skip
        run(*words)
    server = json.loads((folder / "state/state.json").read_text())["serves"]["chat"]["servers"][0]["handle"]["pid"]
    assert psutil.Process(server).environ()["HF_TOKEN"] == VALUE
    run("destroy", "--yes")
    assert not [text for text in said if VALUE in text] and shown == []
    assert holders(folder) == []
    logs = [p.read_text() for p in folder.rglob("server.log")]
    assert len(logs) == 2 and all((f"api_key={'*' * len(VALUE)}," in text) is (runtime == "process") for text in logs)
    assert lcplan("audit", "verify", cwd=folder).code == 0


def test_nor_when_the_engine_fails_with_it_on_its_lips(folder: Path) -> None:
    engine = folder / "bin/vllm"
    engine.write_text('#!/bin/sh\necho "ValueError: bad token $CHATTY"\nexit 1\n')
    lcplan("plan", "recipes", "--runtime", "process", cwd=folder)
    ran = lcplan("apply", "--json", cwd=folder)
    assert ran.code == 1 and "ValueError: bad token ***" in ran.out
    assert VALUE not in ran.out + ran.err and holders(folder) == []
    ran = lcplan("apply", cwd=folder)
    assert ran.code == 1 and VALUE not in ran.out + ran.err and holders(folder) == []


def test_nor_after_a_kill(folder: Path) -> None:
    lcplan("plan", "recipes", "--runtime", "sim", cwd=folder)
    process = start("apply", "--json", "--sim-speed", "5", cwd=folder)
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "step" and event["op"] == "measure":
            break
    process.kill()
    process.communicate()
    assert list((folder / "state/staging").iterdir()) and holders(folder) == []
    assert lcplan("apply", cwd=folder).code == 0 and holders(folder) == []


def test_a_missing_secret_is_named_and_nothing_is_started(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SECRET_OF_TEST")
    lcplan("plan", "recipes", "--runtime", "process", cwd=folder)
    ran = lcplan("apply", cwd=folder)
    assert ran.code == 1 and "SECRET_OF_TEST" in ran.out and "Traceback" not in ran.err
    state = json.loads((folder / "state/state.json").read_text())
    assert state["serves"] == {}


def test_a_value_is_found_across_the_blocks_of_a_long_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lcplan.apply import secrets

    monkeypatch.setattr(secrets, "_BLOCK", 7)
    log = tmp_path / "server.log"
    text = f"a{VALUE}{VALUE}b{VALUE[:-1]}c{VALUE}"
    log.write_text(text)
    secrets.mask_logs(tmp_path, [VALUE])
    assert log.read_text() == text.replace(VALUE, "*" * len(VALUE))
