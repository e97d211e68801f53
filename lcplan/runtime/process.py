"""Servers as plain processes: `bash cmd.sh` in a session of its own, found again by labels in its environment."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

from lcplan.base.diagnostics import fail
from lcplan.base.files import write_atomic
from lcplan.engine.shell import render_script
from lcplan.runtime.base import LABEL_LINEAGE, LABEL_ROLE, LABEL_RUN, LABEL_STATE, Found, Handle, Image, Start

_POLL_S = 0.02
_KILL_WAIT_S = 10.0


class ProcessRuntime:
    """Runs the engine directly on this machine."""

    name = "process"

    def __init__(self) -> None:
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def script(self, start: Start) -> str:
        """Return cmd.sh: exports, then the engine bound to its GPUs and CPUs."""
        env = dict(start.env)
        if start.gpus:
            env = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(start.gpus), **env}
        wrapper = ["taskset", "--cpu-list", start.cpus] if start.cpus else []
        return render_script(start.argv, env, secrets=list(start.secrets), header=list(start.header), wrapper=wrapper)

    def address(self) -> str:
        """Return this machine."""
        return "127.0.0.1"

    def shell(self) -> list[str]:
        """Return no words: commands run here."""
        return []

    def resolve(self, image: str | None, cancelled: Callable[[], bool]) -> Image:
        """Return an image as declared: a process has none of its own."""
        return {"declared": image, "id": None, "digest": None}

    def exports(self, start: Start) -> dict[str, str]:
        """Return variables that stand beside cmd.sh's own exports."""
        return {"PYTHONUNBUFFERED": "1"}

    def command(self, start: Start) -> list[str]:
        """Return what is executed."""
        return ["bash", str(start.script)]

    def start(self, start: Start) -> Handle:
        """Start the server in its own session with its log in a file. Raises LcplanError for a missing secret."""
        env = {**os.environ, **self.exports(start), LABEL_RUN: start.run, LABEL_LINEAGE: start.lineage}
        env |= {LABEL_STATE: start.state, LABEL_ROLE: start.role}
        for name, origin in start.secrets.items():
            if origin not in os.environ:
                raise fail("missing-secret", f"the variable {origin} is not set; {name} is read from it",
                           f"export {origin} before `lcplan apply`")  # fmt: skip
            env[name] = os.environ[origin]
        write_atomic(start.script, self.script(start), mode=0o755)
        with start.log.open("ab") as log:
            try:
                child = subprocess.Popen(
                    self.command(start), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=env,
                    start_new_session=True, close_fds=True,
                )  # fmt: skip
            except OSError as problem:
                raise fail("start-failed", f"nothing could be started: {problem}") from problem
        self._children[child.pid] = child
        return _handle(self.name, child.pid, _created(child.pid), start.run, start.lineage, start.role)

    def exited(self, handle: Handle) -> int | None:
        """Return the exit status, None while it runs, -1 when a process that is not our child is gone."""
        child = self._children.get(handle["pid"])
        if child is not None:
            return child.poll()
        return None if _is_same(handle) else -1

    def stop(self, handle: Handle, grace_s: float) -> None:
        """SIGTERM to the server, SIGKILL to what is left of its session and label after `grace_s` seconds."""
        if self.exited(handle) is None:
            _send(handle["pid"], signal.SIGTERM)
            _wait(lambda: self.exited(handle) is not None, grace_s)
        for pid in _members(handle):
            _send(pid, signal.SIGKILL)
        _wait(lambda: self.exited(handle) is not None and not list(_members(handle)), _KILL_WAIT_S)
        child = self._children.pop(handle["pid"], None)
        if child is not None:
            child.wait(timeout=_KILL_WAIT_S)

    def find(self, lineage: str | None) -> list[Found]:
        """Return labelled processes of this user that lead a session (their helpers are theirs to end)."""
        found: dict[tuple[str, str, str], Found] = {}
        for process, env in _labelled():
            if lineage is not None and env.get(LABEL_LINEAGE) != lineage:
                continue
            key = (env[LABEL_RUN], env.get(LABEL_LINEAGE, ""), env.get(LABEL_ROLE, ""))
            leads = os.getsid(process.pid) == process.pid
            if key not in found or leads:
                handle = _handle(self.name, process.pid, process.create_time(), *key)
                what = f"process {process.pid} ({process.name()})"
                found[key] = Found(key[0], key[1], handle, what, env.get(LABEL_STATE, ""), key[2])
        return list(found.values())


def _labelled() -> Iterator[tuple[Any, dict[str, str]]]:
    import psutil

    for process in psutil.process_iter():
        try:
            env = process.environ()
            if LABEL_RUN in env and process.status() != psutil.STATUS_ZOMBIE:
                yield process, env
        except (psutil.Error, OSError):
            continue


def _members(handle: Handle) -> Iterator[int]:
    """Yield the processes of a server that still run: those of its session, and those that carry its label."""
    import psutil

    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
                continue
            if os.getsid(process.pid) == handle["pid"] or _labels(process) == _wanted(handle):
                yield process.pid
        except (psutil.Error, OSError):
            continue


def _labels(process: Any) -> tuple[str | None, str | None, str]:
    """Return run, lineage and role of a process: two campaigns on one machine may have runs of one name."""
    env = process.environ()
    return env.get(LABEL_RUN), env.get(LABEL_LINEAGE), env.get(LABEL_ROLE, "")


def _wanted(handle: Handle) -> tuple[str, str, str]:
    return handle["run"], handle["lineage"], handle["role"]


def _handle(runtime: str, pid: int, created: float, run: str, lineage: str, role: str) -> Handle:
    return {"runtime": runtime, "pid": pid, "created": created, "run": run, "lineage": lineage, "role": role}


def _created(pid: int) -> float:
    import psutil

    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return 0.0


def _is_same(handle: Handle) -> bool:
    import psutil

    try:
        process = psutil.Process(handle["pid"])
        return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - handle["created"]) < 1.0
    except psutil.Error:
        return False


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _wait(done: Any, limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while not done() and time.monotonic() < end:
        time.sleep(_POLL_S)


RUNTIME = ProcessRuntime()
