"""Serve entries in containers: what is done to one by hand, or to the image behind its tag, shows and is put right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import docker_kit as kit
from tests.docker import image
from tests.kit import campaign, lcplan, small

pytestmark = pytest.mark.docker


@pytest.fixture
def folder(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A campaign that serves one entry in a container, applied."""
    kit.require_engine()
    image.build()
    monkeypatch.setenv("SECRET_OF_TEST", "hush-5271-planted")
    text = (
        small(port)
        .split("experiments:")[0]
        .replace("args: {max", "env: {HF_TOKEN: {from_env: SECRET_OF_TEST}}, args: {max")
    )
    tag = f"{image.TAG}-{tmp_path.name}".lower().replace("_", "-")
    kit.docker("tag", image.TAG, tag)
    campaign(tmp_path / "recipes", kit.in_containers(text, tag=tag) + "serve: {chat: {stack: s, quad: b}}\n")
    try:
        plan(tmp_path)
        apply(tmp_path)
        yield tmp_path
    finally:
        lcplan("destroy", "--yes", cwd=tmp_path)
        kit.docker("rmi", tag, check=False)


def plan(folder: Path) -> dict[str, Any]:
    ran = lcplan("plan", "recipes", cwd=folder)
    assert ran.code == 0, ran.err
    made = json.loads(lcplan("plan", "recipes", "--json", cwd=folder).out)
    return dict(made["serves"][0])


def apply(folder: Path) -> None:
    ran = lcplan("apply", "--yes", cwd=folder)
    assert ran.code == 0, ran.out + ran.err


def label(folder: Path) -> str:
    return str(json.loads((folder / "state/state.json").read_text())["serves"]["chat"]["run"])


def test_an_entry_is_a_container_that_is_started_again_until_it_is_stopped(folder: Path, port: int) -> None:
    found = kit.inspected(label(folder))
    assert found["State"]["Running"] and found["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
    assert "chat" in found["Config"]["Cmd"]
    assert plan(folder)["action"] == "="
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in files if b"hush-5271-planted" in path.read_bytes()]
    run = label(folder)
    assert lcplan("destroy", "--yes", cwd=folder).code == 0
    assert run not in kit.ours() and "unless-stopped" not in kit.docker("ps", "--all", "--filter", f"name={run}")
    assert (folder / "state/serve/chat/server.log").stat().st_size


def test_what_is_done_by_hand_is_drift(folder: Path) -> None:
    kit.docker("update", "--restart", "no", label(folder))
    shown = plan(folder)
    assert shown["action"] == "-/+" and "HostConfig.RestartPolicy" in shown["drift"][0]
    before = label(folder)
    apply(folder)
    assert label(folder) != before and before not in kit.ours() and plan(folder)["action"] == "="
    kit.docker("stop", "--time", "5", label(folder))
    assert plan(folder)["drift"] == ["the container does not run (exited)"]
    kit.docker("rm", "--force", label(folder))
    assert plan(folder)["drift"] == ["the container is gone"]
    apply(folder)
    assert plan(folder)["action"] == "="


def test_an_image_that_moved_behind_its_tag_is_drift(folder: Path, tmp_path: Path) -> None:
    tag = kit.inspected(label(folder))["Config"]["Image"]
    made = tmp_path / "image"
    made.mkdir()
    (made / "Dockerfile").write_text(f"FROM {image.TAG}\nLABEL moved=yes\n")
    kit.docker("build", "--quiet", "--tag", tag, str(made))
    shown = plan(folder)
    assert shown["action"] == "-/+" and any("moved" in line for line in shown["drift"]), shown
    apply(folder)
    assert plan(folder)["action"] == "="
