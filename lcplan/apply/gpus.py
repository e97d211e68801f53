"""Who holds a port or a GPU. Read-only: nothing found here is ever ended."""

from __future__ import annotations

import csv
import shutil
import socket
import subprocess
from collections.abc import Sequence

_SMI_LIMIT_S = 20.0
_CONNECT_LIMIT_S = 1.0


def port_owner(port: int, host: str = "127.0.0.1") -> str | None:
    """Return a description of what listens on a port of this machine or of another one, None when it is free."""
    local = host == "127.0.0.1"
    for name in (host, "::1") if local else (host,):
        try:
            with socket.create_connection((name, port), _CONNECT_LIMIT_S):
                return _listener(port) if local else f"a process on {host}"
        except OSError:
            continue
    return None


def busy(gpus: Sequence[int], shell: Sequence[str] = ()) -> list[str]:
    """Return one description per compute process on the given GPUs; [] when they are idle or nvidia-smi is absent.

    `shell` are the words that make a command run on the GPUs' machine.
    """
    if not _present(shell):
        return []
    indices = {row[1]: int(row[0]) for row in _query(shell, "--query-gpu=index,uuid") if len(row) == 2}
    found = []
    for row in _query(shell, "--query-compute-apps=gpu_uuid,pid,process_name,used_memory"):
        if len(row) == 4 and indices.get(row[0]) in gpus:
            found.append(f"process {row[1]} ({row[2]}) holds {row[3]} on GPU {indices[row[0]]}")
    return found


def driver(shell: Sequence[str] = ()) -> dict[str, object]:
    """Return what nvidia-smi says of the driver and the GPUs; {} when it is absent."""
    if not _present(shell):
        return {}
    rows = _query(shell, "--query-gpu=index,uuid,name,memory.total,driver_version")
    gpus = [{"index": int(r[0]), "uuid": r[1], "name": r[2], "memory": r[3]} for r in rows if len(r) == 5]
    return {"driver": rows[0][4], "gpus": gpus} if gpus else {}


def _present(shell: Sequence[str]) -> bool:
    return bool(shell) or shutil.which("nvidia-smi") is not None


def _query(shell: Sequence[str], what: str) -> list[list[str]]:
    try:
        ran = subprocess.run(
            [*shell, "nvidia-smi", what, "--format=csv,noheader"], capture_output=True, text=True, timeout=_SMI_LIMIT_S,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    if ran.returncode != 0:
        return []
    return [[cell.strip() for cell in row] for row in csv.reader(ran.stdout.splitlines())]


def _listener(port: int) -> str:
    import psutil

    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr[1] == port:
                name = psutil.Process(connection.pid).name() if connection.pid else "another user's process"
                return f"process {connection.pid} ({name})"
    except psutil.Error:
        pass
    return "another process"
