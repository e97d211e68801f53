"""The docker runtime against a real engine: what is started, what is captured, what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lcplan.base.diagnostics import LcplanError
from lcplan.runtime.base import Start
from lcplan.runtime.docker import DockerRuntime
from lcplan.runtime.docker_inspect import inspect_differences
from lcplan.runtime.docker_log import Follower
from tests import docker_kit as kit
from tests.docker import image

pytestmark = pytest.mark.docker
GPU = "GPU-6d5b0f4e-0000-0000-0000-000000000001"


@pytest.fixture
def runtime() -> Iterator[DockerRuntime]:
    with kit.engine():
        yield DockerRuntime()
        for name in kit.ours():
            kit.docker("rm", "--force", name)


def until(done: Callable[[], bool], limit_s: float = 20.0) -> None:
    end = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def everything(folder: Path, run: str, port: int) -> Start:
    """A launch with every setting that a container can have."""
    options = {
        "ipc": "host", "shm_size": "1g", "ulimits": {"nofile": "512:1024", "core": 0}, "user": "0:0",
        "bind_memory": True, "stop_grace_s": 7, "volumes": [*image.volumes(), "/tmp:/data dir:ro"],
    }  # fmt: skip
    return kit.launch(
        folder, run, port, options=options, gpus=(GPU, "3"), cpus="0-1", numa=(0,),
        env={"PLAIN": "1", "QUOTED": "a 'b' \"c\" $D\\"}, secrets={"HF_TOKEN": "SECRET_OF_TEST"},
    )  # fmt: skip


def test_cmd_sh_by_hand_gives_the_same_container(
    runtime: DockerRuntime, tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_TEST", "hush-5271")
    start = everything(tmp_path / "run", "equal", port)
    handle = runtime.start(start)
    ours = runtime.inspect(handle)
    runtime.stop(handle, 5)
    env = {**os.environ, "HF_TOKEN": "hush-5271"}
    by_hand = subprocess.Popen(
        ["bash", str(start.script)], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: bool(kit.docker("ps", "--quiet", "--filter", "name=^equal$")))
        theirs = kit.inspected("equal")
    finally:
        kit.docker("rm", "--force", "equal")
        by_hand.wait(10)
    assert ours is not None
    assert inspect_differences(ours, theirs) == []
    # The comparison is not blind: these are in both.
    host = theirs["HostConfig"]
    assert host["DeviceRequests"][0]["DeviceIDs"] == [GPU, "3"]
    assert (host["CpusetCpus"], host["CpusetMems"], host["ShmSize"]) == ("0-1", "0", 1 << 30)
    assert host["CapAdd"] == ["SYS_NICE"] or host["CapAdd"] == ["CAP_SYS_NICE"]
    assert (host["IpcMode"], host["NetworkMode"], host["Init"]) == ("host", "host", True)
    assert host["RestartPolicy"]["Name"] == "no"
    assert host["LogConfig"] == {"Type": "json-file", "Config": {"max-file": "4", "max-size": "50m"}}
    assert theirs["Config"]["Labels"]["lcplan.fingerprint"] == "fingerprint"


@pytest.mark.parametrize(
    ("option", "field"),
    [
        (["--cpuset-cpus", "0"], "HostConfig.CpusetCpus"),
        (["--ipc", "host"], "HostConfig.IpcMode"),
        (["--shm-size", "2g"], "HostConfig.ShmSize"),
        (["-e", "PLAIN=2"], "Config.Env: PLAIN"),
        (["-e", "MORE=1"], "Config.Env: MORE"),
        (["--label", "lcplan.lineage=other"], "Config.Labels"),
        (["--gpus", '"device=5"'], "HostConfig.DeviceRequests"),
        (["--restart", "always"], "HostConfig.RestartPolicy"),
        (["--ulimit", "nofile=100:100"], "HostConfig.Ulimits"),
        (["-v", "/etc:/more"], "HostConfig.Binds"),
        (["--user", "1:1"], "Config.User"),
        (["--cap-add", "SYS_ADMIN"], "HostConfig.CapAdd"),
        (["--log-opt", "max-size=1m"], "HostConfig.LogConfig"),
        (["--privileged"], "HostConfig.Privileged"),
    ],
)
def test_a_container_changed_by_hand_differs(
    runtime: DockerRuntime, tmp_path: Path, option: list[str], field: str
) -> None:
    start = kit.shell(tmp_path, "changed", "sleep 60", env={"PLAIN": "1"}, cpus="0-1")
    handle = runtime.start(start)
    ours = runtime.inspect(handle)
    runtime.stop(handle, 0)
    from lcplan.engine.shell import read_script

    words = read_script(start.script.read_text())[-1]
    at = words.index("--entrypoint")
    kit.docker("create", *words[2:at], *option, *words[at:])
    theirs = kit.inspected("changed")
    kit.docker("rm", "--force", "changed")
    assert ours is not None
    found = inspect_differences(ours, theirs)
    assert [one for one in found if one.startswith(field)] == found
    assert len(found) == 1


def test_published_ports_without_the_hosts_network(runtime: DockerRuntime, tmp_path: Path, port: int) -> None:
    start = kit.launch(tmp_path, "published", port, options={"network": None})
    handle = runtime.start(start)
    until(lambda: kit.healthy(port) or runtime.exited(handle) is not None)
    found = runtime.inspect(handle)
    assert kit.healthy(port), start.log.read_text()
    runtime.stop(handle, 5)
    assert found is not None
    assert found["HostConfig"]["PortBindings"] == {f"{port}/tcp": [{"HostIp": "", "HostPort": str(port)}]}


def test_the_log_is_whole_after_stop(runtime: DockerRuntime, tmp_path: Path, port: int) -> None:
    start = kit.launch(tmp_path, "logged", port)
    handle = runtime.start(start)
    until(lambda: kit.healthy(port))
    assert runtime.exited(handle) is None
    until(lambda: "Application startup complete" in start.log.read_text())
    runtime.stop(handle, 5)
    assert "[shutdown]" in start.log.read_text()
    assert runtime.exited(handle) == -1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cmd.sh", "server.log"]


def test_a_server_that_ignores_sigterm_is_killed(runtime: DockerRuntime, tmp_path: Path) -> None:
    start = kit.shell(tmp_path, "stubborn", "trap '' TERM; echo here; while :; do sleep 1; done")
    handle = runtime.start(start)
    until(lambda: "here" in start.log.read_text())
    begun = time.monotonic()
    runtime.stop(handle, 1)
    assert 0.9 < time.monotonic() - begun < 10
    assert kit.ours() == []


def test_exit_status_and_output_of_a_server_that_ends(runtime: DockerRuntime, tmp_path: Path) -> None:
    start = kit.shell(tmp_path, "ended", "echo out; echo err >&2; exit 7")
    handle = runtime.start(start)
    until(lambda: runtime.exited(handle) is not None)
    assert runtime.exited(handle) == 7
    runtime.stop(handle, 1)
    assert sorted(start.log.read_text().split()) == ["err", "out"]


def test_a_program_that_the_image_does_not_have(runtime: DockerRuntime, tmp_path: Path) -> None:
    start = kit.launch(tmp_path, "ended", 1, argv=["no-such-program"])
    handle = runtime.start(start)
    until(lambda: runtime.exited(handle) is not None)
    assert runtime.exited(handle) == 127
    runtime.stop(handle, 1)
    assert "no-such-program" in start.log.read_text()


def test_what_a_killed_apply_leaves_is_found_and_its_log_completed(runtime: DockerRuntime, tmp_path: Path) -> None:
    start = kit.shell(tmp_path / "run", "left", "for i in 1 2 3; do echo line $i; done; sleep 60")
    handle = runtime.start(start)
    later = DockerRuntime()
    until(lambda: "line 3" in start.log.read_text())
    start.log.write_text("line 1\n")  # all that a follower wrote before it was killed
    assert [found.run for found in later.find(kit.LINEAGE)] == ["left"]
    assert later.find("another lineage") == []
    later.stop({**later.find(kit.LINEAGE)[0].handle, "log": str(start.log)}, 1)
    assert start.log.read_text() == "line 1\nline 2\nline 3\n"
    later.stop(handle, 1)  # a second time changes nothing
    assert kit.ours() == []


def test_a_container_without_our_label_is_never_found(runtime: DockerRuntime, tmp_path: Path) -> None:
    name = "somebody-elses"
    kit.docker("run", "--detach", "--rm", "--name", name, "--label", "other=1", image.TAG, "sleep", "60")
    try:
        assert name not in [found.run for found in runtime.find(None)]
        assert runtime.find(kit.LINEAGE) == []
    finally:
        kit.docker("rm", "--force", name)


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"argv": ["sleep", "1"], "options": {"volumes": ["no/path:/x"]}}, "start-failed", "no/path"),
        ({"cpus": "4000"}, "start-failed", "4000"),
        ({"secrets": {"A": "VARIABLE_THAT_IS_NOT_SET"}}, "missing-secret", "VARIABLE_THAT_IS_NOT_SET"),
    ],
)
def test_what_can_not_start_leaves_nothing(
    runtime: DockerRuntime, tmp_path: Path, changes: dict[str, object], code: str, words: str
) -> None:
    with pytest.raises(LcplanError) as problem:
        runtime.start(kit.launch(tmp_path, "broken", 1, **changes))
    assert problem.value.diagnostics[0].code == code
    assert words in str(problem.value)
    assert kit.ours() == []


def test_an_image_that_can_not_be_had(runtime: DockerRuntime) -> None:
    with pytest.raises(LcplanError) as problem:
        runtime.resolve("127.0.0.1:1/no/such:1.0", lambda: False)
    assert problem.value.diagnostics[0].code == "image_pull"


def test_secrets_reach_the_process_and_nothing_else(
    runtime: DockerRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_TEST", "hush-5271")
    start = kit.shell(
        tmp_path, "secret", 'echo "it has ${#HF_TOKEN} letters"; sleep 60', secrets={"HF_TOKEN": "SECRET_OF_TEST"}
    )
    handle = runtime.start(start)
    until(lambda: "it has 9 letters" in start.log.read_text())
    seen = [line for line in kit.words_of_processes() if "hush-5271" in line]
    runtime.stop(handle, 0)
    assert seen == []
    for file in tmp_path.iterdir():
        assert "hush-5271" not in file.read_text()
    assert "hush-5271" not in json.dumps(handle)


def test_the_follower_goes_on_after_errors(runtime: DockerRuntime, tmp_path: Path) -> None:
    from lcplan.runtime import docker_engine

    start = kit.shell(tmp_path, "followed", "n=0; while [ $n -lt 40 ]; do n=$((n+1)); echo $n; done; sleep 60")
    handle = runtime.start(start)
    log = tmp_path / "again.log"
    log.write_text("1\n2\n")
    asked: list[int] = []

    def connect() -> object:
        asked.append(1)
        if len(asked) < 3:
            raise ConnectionResetError("the daemon is restarted")
        return docker_engine.connect()

    follower = Follower(connect, handle["id"], log)  # type: ignore[arg-type]
    until(lambda: log.read_text().endswith("\n40\n"))
    assert log.read_text().split() == [str(n) for n in range(1, 41)]
    runtime.stop(handle, 0)
    follower.close()


def test_cmd_sh_needs_its_secret(runtime: DockerRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_TEST", "hush-5271")
    start = kit.shell(tmp_path, "unset", "sleep 60", secrets={"HF_TOKEN": "SECRET_OF_TEST"})
    runtime.stop(runtime.start(start), 0)
    env = {key: value for key, value in os.environ.items() if key != "HF_TOKEN"}
    ran = subprocess.run(["bash", str(start.script)], env=env, capture_output=True, text=True, check=False)
    assert ran.returncode not in (0, -signal.SIGKILL)
    assert "HF_TOKEN" in ran.stderr
    assert kit.ours() == []
