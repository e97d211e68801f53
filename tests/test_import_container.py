"""`lcplan import --container`: a container of a real Docker engine is read like the command that made it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import docker_kit
from tests.docker import image
from tests.docker_kit import docker
from tests.kit import lcplan

pytestmark = pytest.mark.docker
ARGV = ["acme/m", "--tensor-parallel-size", "2", "--max-model-len", "32K", "--hf-overrides", '{"a": "it\'s $HOME"}']


@pytest.fixture
def container() -> Iterator[str]:
    with docker_kit.engine():
        name = f"lc-import-{uuid.uuid4().hex[:8]}"
        options = ["--gpus", '"device=2,3"', "--ipc", "host", "--network", "host", "-v", "/tmp:/models:ro"]
        env = ["-e", "HF_TOKEN=made-up-value", "-e", "NCCL_DEBUG=WARN"]
        docker(
            "create", "--name", name, *options, *env, "--restart", "always", "--ulimit", "memlock=-1",
            "--entrypoint", "vllm", image.TAG, "serve", *ARGV,
        )  # fmt: skip
        yield name
        docker("rm", "--force", name)


def test_a_container_is_read_like_its_command(container: str, tmp_path: Path) -> None:
    ran = lcplan("import", "--container", container, "--json")
    assert ran.code == 0, ran.err
    got = json.loads(ran.out)
    assert (got["engine"], got["form"], got["model"]) == ("vllm", "docker", "acme/m")
    assert (got["gpus"], got["gpu_count"], got["tp"], got["max_model_len"]) == (["2", "3"], 2, 2, 32768)
    assert got["env"] == {"HF_TOKEN": "<secret>", "NCCL_DEBUG": "WARN"}
    assert got["volumes"] == ["/tmp:/models:ro"]
    assert got["flags"] == {"hf-overrides": {"a": "it's $HOME"}}
    assert got["container"]["name"] == container and got["container"]["ulimit"] == ["memlock=-1"]
    assert {"restart_policy", "secret_env", "secret_literal"} <= set(got["diagnostics"])
    assert got["unresolved"] == [] and "made-up-value" not in ran.out + ran.err


def test_the_recipe_of_a_container_is_proven(container: str, tmp_path: Path) -> None:
    target = tmp_path / "stack.yaml"
    ran = lcplan("import", "--container", container, "-o", str(target))
    assert ran.code == 0, ran.err
    assert "not-proven" not in ran.err and "from_env: HF_TOKEN" in target.read_text()


def test_no_such_container_is_an_error() -> None:
    docker_kit.require_engine()
    ran = lcplan("import", "--container", "lc-never-made")
    assert ran.code == 1 and "error[container-not-found]" in ran.err
