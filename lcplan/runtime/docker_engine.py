"""The connection to a Docker engine: the local socket, or the one that DOCKER_HOST names (`unix://`, `tcp://`, `ssh://`).

An engine behind ssh is reached through its socket forwarded by the user's own `ssh`, with the user's own settings.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lcplan.base.diagnostics import fail

if TYPE_CHECKING:
    from docker import APIClient

_SOCKET = "/var/run/docker.sock"
_TUNNEL_LIMIT_S = 30.0
_tunnel_lock = threading.Lock()
_tunnels: dict[str, tuple[subprocess.Popen[bytes], str]] = {}


def endpoint() -> str:
    """Return the address of the engine that is used."""
    return os.environ.get("DOCKER_HOST") or f"unix://{_SOCKET}"


def configured() -> bool:
    """Return whether there is anything to connect to: a socket, or an address that the user gave."""
    where = endpoint()
    return not where.startswith("unix://") or Path(where.removeprefix("unix://")).exists()


def answers(limit_s: float = 0.3) -> bool:
    """Return whether a local engine answers within a time; one behind ssh or TLS counts as not answering."""
    where = urlsplit(endpoint())
    try:
        if where.scheme == "unix":
            door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            door.settimeout(limit_s)
            door.connect(where.path)
        elif where.scheme == "tcp" and not os.environ.get("DOCKER_TLS_VERIFY"):
            door = socket.create_connection((where.hostname or "127.0.0.1", where.port or 2375), limit_s)
        else:
            return False
        with door:
            door.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            return door.recv(64).split(b" ")[1:2] == [b"200"]
    except OSError:
        return False


def connect(where: str = "", timeout_s: int = 60) -> APIClient:
    """Return a client of the engine at an address, else of the one in use. Raises LcplanError `docker-unreachable`."""
    import docker
    from docker.errors import DockerException
    from docker.utils import kwargs_from_env

    where = where or endpoint()
    settings = kwargs_from_env()
    settings["base_url"] = _forwarded(where) if where.startswith("ssh://") else where
    try:
        return docker.APIClient(version="auto", timeout=timeout_s, **settings)
    except (DockerException, OSError) as problem:
        raise fail("docker-unreachable", f"no Docker engine answers at {where}: {_reason(problem)}",
                   "start it (`systemctl start docker`), or set DOCKER_HOST") from problem  # fmt: skip


def address() -> str:
    """Return the address under which published ports and the host's network of the engine are reached."""
    where = urlsplit(endpoint())
    if where.scheme == "ssh":
        return _ssh_name(endpoint())
    return where.hostname or "127.0.0.1" if where.scheme == "tcp" else "127.0.0.1"


def shell() -> list[str]:
    """Return the words in front of a command that make it run on the engine's machine: none for a local engine."""
    return _ssh(endpoint()) if endpoint().startswith("ssh://") else []


def _reason(problem: BaseException) -> str:
    text = str(problem)
    for plain in ("Connection refused", "No such file or directory", "Permission denied", "timed out"):
        if plain in text:
            return plain.lower()
    return text[:200]


def _ssh(where: str) -> list[str]:
    parts = urlsplit(where)
    target = f"{parts.username}@{parts.hostname}" if parts.username else str(parts.hostname)
    return ["ssh", "-o", "BatchMode=yes", *(["-p", str(parts.port)] if parts.port else []), target]


@cache
def _ssh_name(where: str) -> str:
    """Return the host name that the user's ssh settings give to an alias."""
    *options, target = _ssh(where)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        told = subprocess.run([*options, "-G", target], capture_output=True, text=True, timeout=10, check=True).stdout
        for line in told.splitlines():
            if line.startswith("hostname "):
                return line.split()[1]
    return str(urlsplit(where).hostname)


def _forwarded(where: str) -> str:
    """Return the address of a local socket that leads to the engine behind ssh; one tunnel serves the process."""
    with _tunnel_lock:
        known = _tunnels.get(where)
        if known is not None and known[0].poll() is None:
            return known[1]
        *options, target = _ssh(where)
        folder = Path(tempfile.mkdtemp(prefix="lcplan-ssh-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        local, errors = folder / "docker.sock", folder / "errors"
        forward = ["-o", "ExitOnForwardFailure=yes", "-L", f"{local}:{urlsplit(where).path or _SOCKET}"]
        with errors.open("wb") as log:
            # `cat` ends with our end of its stdin, so that no tunnel outlives the process that needs it.
            tunnel = subprocess.Popen([*options, *forward, target, "cat"], stdin=subprocess.PIPE,
                                      stdout=subprocess.DEVNULL, stderr=log, start_new_session=True)  # fmt: skip
        end = time.monotonic() + _TUNNEL_LIMIT_S
        while not local.exists():
            if tunnel.poll() is not None or time.monotonic() > end:
                tunnel.kill()
                said = errors.read_text(errors="replace").strip()[-300:] or "no answer"
                raise fail("docker-unreachable", f"no Docker engine is reached at {where}: {said}",
                           f"`{' '.join(_ssh(where))} docker version` must work without a question")  # fmt: skip
            time.sleep(0.02)
        _tunnels[where] = (tunnel, f"unix://{local}")
        return f"unix://{local}"
