"""The engine itself fails or is far away: restarted while cells are measured, reached through ssh."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lcplan.runtime import docker_engine
from lcplan.runtime.docker import DockerRuntime
from tests import docker_kit as kit
from tests.docker import image
from tests.kit import campaign, lcplan, small, start

pytestmark = pytest.mark.docker


class Engine:
    """A Docker engine of the test's own, with its own socket and data, that may be killed."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "docker.sock"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        hook = folder / "bin" / "nvidia-container-runtime-hook"
        hook.parent.mkdir()
        hook.write_text("#!/bin/sh\nexit 0\n")
        hook.chmod(0o755)

    def start(self) -> None:
        # With `--bridge=none` an engine removes the bridge that another one uses.
        bridge = "docker0" if Path("/sys/class/net/docker0").exists() else "none"
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["dockerd", "--host", f"unix://{self.socket}", "--data-root", str(self._folder / "data"),
                 "--exec-root", str(self._folder / "exec"), "--pidfile", str(self._folder / "pid"),
                 f"--bridge={bridge}", "--iptables=false", "--ip6tables=false"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "PATH": f"{self._folder / 'bin'}:{os.environ['PATH']}"},
            )  # fmt: skip
        until(docker_engine.answers)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(30)
        (self._folder / "pid").unlink(missing_ok=True)
        containerd = self._folder / "exec" / "containerd" / "containerd.pid"
        if containerd.exists():  # it outlives a dockerd that is killed
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(containerd.read_text()), signal.SIGKILL)
            containerd.unlink()

    def remove(self) -> None:
        """Remove the engine's folder, with the mounts that a killed engine leaves in it."""
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in reversed([one for one in mounts if one.startswith(str(self._folder))]):
            subprocess.run(["umount", "--lazy", mount], check=False)
        shutil.rmtree(self._folder)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    if shutil.which("dockerd") is None or os.getuid() != 0:
        kit.not_here("only root can start another dockerd")
    with kit.engine():
        folder = Path(tempfile.mkdtemp(prefix="lcplan-engine-"))
        made = Engine(folder)
        monkeypatch.setenv("DOCKER_HOST", f"unix://{made.socket}")
        made.start()
        try:
            image.build()
            yield made
        finally:
            made.end()
            made.remove()


def until(done: Callable[[], bool], limit_s: float = 30.0) -> None:
    end = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def slow_campaign(folder: Path, port: int) -> None:
    text = kit.in_containers(small(port)).replace("output: 8}", "output: 2000}").replace("32K", "64K")
    campaign(folder / "recipes", text.replace("layout: tp1,", 'layout: tp1, env: {LCPLAN_SIM_SPEED: "2"},'))
    assert lcplan("plan", "recipes", cwd=folder).code == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_engine_is_restarted_while_a_cell_is_measured(
    engine: Engine, tmp_path: Path, port: int, number: signal.Signals
) -> None:
    slow_campaign(tmp_path, port)
    process = start("apply", "--json", cwd=tmp_path)
    kit.reach(process, "measure")
    engine.end(number)
    engine.start()
    rest, _ = process.communicate(timeout=120)
    assert process.returncode == 1, rest
    assert json.loads(rest.splitlines()[-1])["failed"]
    assert kit.ours(kit.lineage_of(tmp_path)) == []
    assert list((tmp_path / "state/staging").iterdir()) == []
    (log,) = tmp_path.glob("state/runs/*/server.log")
    assert "lcplan simulator" in log.read_text()
    assert lcplan("audit", "verify", cwd=tmp_path).code == 0


def test_an_apply_killed_without_its_engine_waits_for_the_engine(engine: Engine, tmp_path: Path, port: int) -> None:
    slow_campaign(tmp_path, port)
    process = start("apply", "--json", cwd=tmp_path)
    kit.reach(process, "measure")
    process.kill()
    process.communicate()
    engine.end()
    waiting = start("destroy", "--yes", cwd=tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(2)  # nothing is sealed while the container may still run
    assert list((tmp_path / "state/staging").iterdir()) != []
    engine.start()
    assert waiting.wait(60) == 0
    assert kit.ours(kit.lineage_of(tmp_path)) == []
    assert list((tmp_path / "state/staging").iterdir()) == []


FAKE_SSH = f"""#!{sys.executable}
# Stands for ssh to this machine: tells the name behind an alias, forwards a socket until stdin ends, runs commands.
import socket, subprocess, sys, threading
words, options = sys.argv[1:], {{}}
while words and words[0].startswith("-"):
    if words[0] == "-G":
        print("user me\\nhostname 127.0.0.1\\nport 22")
        sys.exit()
    options[words[0]] = words[1]
    del words[:2]
host, *command = words
if host == "me@unknown":
    sys.exit("ssh: Could not resolve hostname unknown")

def copy(a, b):
    while block := a.recv(65536):
        b.sendall(block)
    b.shutdown(socket.SHUT_WR)

def forward(door, target):
    while True:
        near, _ = door.accept()
        far = socket.socket(socket.AF_UNIX)
        far.connect(target)
        threading.Thread(target=copy, args=(near, far), daemon=True).start()
        threading.Thread(target=copy, args=(far, near), daemon=True).start()

if "-L" in options:
    local, target = options["-L"].split(":")
    door = socket.socket(socket.AF_UNIX)
    door.bind(local)
    door.listen()
    threading.Thread(target=forward, args=(door, target), daemon=True).start()
sys.exit(subprocess.run(command).returncode)
"""


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(FAKE_SSH)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    with kit.engine():
        yield


def test_an_engine_behind_ssh(ssh: None, tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign(tmp_path / "recipes", kit.in_containers(small(port)).replace("workloads: [w, g]", "workloads: [w]"))
    assert lcplan("plan", "recipes", cwd=tmp_path).code == 0
    monkeypatch.setenv("DOCKER_HOST", "ssh://me@node")
    runtime = DockerRuntime()
    assert (runtime.address(), runtime.shell()) == ("127.0.0.1", ["ssh", "-o", "BatchMode=yes", "me@node"])
    ran = lcplan("apply", "--yes", cwd=tmp_path)
    assert ran.code == 0, ran.out + ran.err
    monkeypatch.delenv("DOCKER_HOST")
    assert kit.ours(kit.lineage_of(tmp_path)) == []


def test_a_host_that_ssh_does_not_reach(ssh: None, tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign(tmp_path / "recipes", kit.in_containers(small(port)))
    assert lcplan("plan", "recipes", cwd=tmp_path).code == 0
    monkeypatch.setenv("DOCKER_HOST", "ssh://me@unknown")
    ran = lcplan("apply", "--yes", cwd=tmp_path)
    assert ran.code == 1
    assert "resolve failed [docker-unreachable]" in ran.out
    assert "Could not resolve hostname" in ran.out
    assert "Traceback" not in ran.out + ran.err
