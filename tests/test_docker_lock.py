"""`lcplan lock`: tags pinned to digests, plans that use them, tags that move; against a registry of the test's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lcplan.runtime.docker import DockerRuntime
from lcplan.runtime.docker_image import repository
from tests import docker_kit as kit
from tests.docker.registry import Registry, serving
from tests.kit import campaign, lcplan, small


@pytest.fixture
def registry() -> Iterator[Registry]:
    with kit.engine(), serving() as registry:
        yield registry
        for line in kit.docker("images", "--digests", "--format", "{{.ID}}", registry.name).split():
            kit.docker("rmi", "--force", line, check=False)


@pytest.mark.docker
def test_a_missing_image_is_pulled_and_pinned(registry: Registry) -> None:
    digest = registry.push("v1.2", "one")
    found = DockerRuntime().resolve(f"{registry.name}:v1.2", lambda: False)
    assert found["digest"] == digest
    assert found["id"] == kit.docker("inspect", "--format", "{{.Id}}", f"{registry.name}:v1.2")
    pinned = DockerRuntime().resolve(f"{registry.name}:v1.2@{digest}", lambda: False)
    assert pinned == {**found, "declared": f"{registry.name}:v1.2@{digest}"}


@pytest.mark.docker
def test_a_pinned_image_is_pulled_by_its_digest(registry: Registry) -> None:
    old = registry.push("v1.2", "one")
    registry.push("v1.2", "two")
    found = DockerRuntime().resolve(f"{registry.name}:v1.2@{old}", lambda: False)
    assert found["digest"] == old


@pytest.mark.docker
def test_lock_plan_move_lock_again(registry: Registry, tmp_path: Path, port: int) -> None:
    old = registry.push("v0.31.0", "one")
    tag = f"{registry.name}:v0.31.0"
    recipes = campaign(tmp_path / "recipes", kit.in_containers(small(port), tag=tag))
    assert lcplan("plan", "recipes", cwd=tmp_path).code == 0
    unpinned = json.loads((tmp_path / "plans/plan.json").read_text())

    ran = lcplan("lock", "recipes", cwd=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    assert json.loads((recipes / "lcplan.lock.json").read_text()) == {"lcplan_lock": 1, "images": {tag: old}}
    planned = lcplan("plan", "recipes", cwd=tmp_path)
    assert planned.err == ""
    plan = json.loads((tmp_path / "plans/plan.json").read_text())
    assert plan["cells"][0]["fingerprint"] != unpinned["cells"][0]["fingerprint"]
    assert f"{tag}@{old}" in (tmp_path / "plans/plan.json").read_text()

    assert lcplan("apply", "--yes", cwd=tmp_path).code == 0
    (made,) = tmp_path.glob("state/runs/*/manifest.json")
    assert json.loads(made.read_text())["predicate"]["image"]["digest"] == old
    assert f"{tag}@{old}" in made.with_name("cmd.sh").read_text()

    new = registry.push("v0.31.0", "two")
    moved = lcplan("plan", "recipes", cwd=tmp_path)
    assert moved.code == 0
    assert "warning[tag-moved]" in moved.err
    assert new[:19] in moved.err
    assert json.loads((tmp_path / "plans/plan.json").read_text())["id"] == plan["id"], (
        "what is asked is no part of a plan"
    )

    again = lcplan("lock", "recipes", "--json", cwd=tmp_path)
    assert json.loads(again.out)["images"] == {tag: new}
    assert json.loads(again.out)["before"] == {tag: old}
    stale = lcplan("apply", "plans/plan.json", "--yes", cwd=tmp_path)
    assert stale.code == 1
    assert "lcplan.lock.json" in stale.err


@pytest.mark.docker
def test_what_can_not_be_locked_is_named_and_nothing_is_written(registry: Registry, tmp_path: Path, port: int) -> None:
    recipes = campaign(tmp_path / "recipes", kit.in_containers(small(port), tag=f"{registry.name}:v9.9"))
    ran = lcplan("lock", "recipes", cwd=tmp_path)
    assert ran.code == 1
    assert "v9.9" in ran.err
    assert not (recipes / "lcplan.lock.json").exists()


@pytest.mark.parametrize("text", ["", "{}", '{"lcplan_lock": 1, "images": {"a": "latest"}}', "[1]"])
def test_a_damaged_lock_is_a_diagnostic(tmp_path: Path, port: int, text: str) -> None:
    recipes = campaign(tmp_path / "recipes", kit.in_containers(small(port)))
    (recipes / "lcplan.lock.json").write_text(text)
    ran = lcplan("validate", "recipes", cwd=tmp_path)
    assert ran.code == 1
    assert "lcplan.lock.json: error[bad-lock]" in ran.err


def test_an_image_that_the_lock_does_not_know_is_a_warning(tmp_path: Path, port: int) -> None:
    recipes = campaign(tmp_path / "recipes", kit.in_containers(small(port), tag="a/b:v1.0"))
    (recipes / "lcplan.lock.json").write_text('{"lcplan_lock": 1, "images": {}}')
    ran = lcplan("validate", "recipes", cwd=tmp_path)
    assert ran.code == 0
    assert "warning[image-unlocked]" in ran.err


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("vllm/vllm-openai:v0.31.0", "docker.io/vllm/vllm-openai"),
        ("busybox", "docker.io/library/busybox"),
        ("localhost:5000/a/b:1@sha256:00", "localhost:5000/a/b"),
        ("registry.example.org/team/image@sha256:00", "registry.example.org/team/image"),
    ],
)
def test_the_repository_of_a_reference(reference: str, name: str) -> None:
    assert repository(reference) == name
