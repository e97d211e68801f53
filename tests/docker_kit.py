"""What the tests of the docker runtime share: the engine, the simulator's image, launches and campaigns made of it."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lcplan.runtime import docker_engine
from lcplan.runtime.base import Container, Start
from tests.docker import image

LINEAGE = "lineage-of-tests"


@contextmanager
def engine() -> Iterator[None]:
    """Have the engine with the simulator's image, and have it alone: containers and ports are one name space."""
    require_engine()
    with (Path(tempfile.gettempdir()) / "lcplan-docker-tests.lock").open("w") as door:
        fcntl.flock(door, fcntl.LOCK_EX)
        image.build()
        yield


def require_engine() -> None:
    """Go on only with a Docker engine."""
    if not docker_engine.answers(5.0):
        not_here("no Docker engine answers; tests/docker/start_engine.sh starts one")


def not_here(reason: str) -> None:
    """Fail a test in CI, skip it elsewhere, for a reason that lies in the machine."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def docker(*words: str, check: bool = True) -> str:
    """Run the docker command and return what it prints."""
    ran = subprocess.run(["docker", *words], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert ran.returncode == 0 or not check, ran.stderr
    return ran.stdout.strip()


def inspected(container: str) -> dict[str, Any]:
    """Return the inspection of a container."""
    found: dict[str, Any] = json.loads(docker("inspect", container))[0]
    return found


def ours(lineage: str = LINEAGE) -> list[str]:
    """Return the names of a lineage's containers."""
    return docker("ps", "--all", "--filter", f"label=lcplan.lineage={lineage}", "--format", "{{.Names}}").split()


def lineage_of(folder: Path) -> str:
    """Return the lineage of a campaign's state."""
    return str(json.loads((folder / "state/state.json").read_text())["lineage"])


def launch(folder: Path, run: str, port: int, **changes: Any) -> Start:
    """Return a simulated vLLM server as a container; `changes` are fields of Start, `options` the stack's `docker:`."""
    options = {"network": "host", "volumes": image.volumes(), **changes.pop("options", {})}
    container = Container(changes.pop("image", image.TAG), options, changes.pop("numa", ()), "fingerprint")
    argv = ["vllm", "serve", "/models/tiny", "--port", str(port), "--served-model-name", run]
    folder.mkdir(parents=True, exist_ok=True)
    start = Start(run, LINEAGE, argv, {}, folder, container=container, port=port)
    return replace(start, **changes)


def shell(folder: Path, run: str, script: str, **changes: Any) -> Start:
    """Return a container that runs a shell script instead of an engine."""
    return launch(folder, run, 1, argv=["sh", "-c", script], options={"volumes": [], "network": "none"}, **changes)


def healthy(port: int) -> bool:
    """Return whether a server answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def in_containers(recipe: str, options: Mapping[str, Any] | None = None, tag: str = image.TAG) -> str:
    """Return a recipe whose vLLM is the simulator's image."""
    declared = {"network": "host", "ipc": "host", "volumes": image.volumes(), **(options or {})}
    return recipe.replace(
        "engines: {vllm: {version: 0.31.0}}",
        f"engines: {{vllm: {{version: 0.31.0, image: {json.dumps(tag)}}}}}\n"
        f"defaults: {{docker: {json.dumps(declared)}}}",
    )


def reach(process: subprocess.Popen[str], op: str) -> str:
    """Read the events of an apply until a step begins; return the run's id."""
    assert process.stdout is not None
    told = []
    for line in process.stdout:
        told.append(line)
        event = json.loads(line)
        if event["event"] == "step" and event["op"] == op:
            return str(event["run"])
    raise AssertionError(f"the apply ended before {op}: {''.join(told)}")


def words_of_processes() -> Sequence[str]:
    """Return the command lines of everything that runs on this machine."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(process.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found
