"""Kills a process of a measured server, and writes down what its health page says from then on.

usage: python3 victim.py EVENTS VARIANT TITLE PORTS > health.txt   (PORTS with commas between)

EVENTS is the file that `lcplan apply --json` writes. Once a cell of VARIANT is being measured, the process of its
server whose title holds TITLE gets SIGKILL. The server is the one of PORTS that lists the run as its model.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil

WAIT_S, INTO_S, WATCH_S = 1200.0, 1.0, 15.0


def main(events: Path, variant: str, title: str, ports: list[int]) -> None:
    """Wait, kill, watch."""
    run = measured(events, variant)
    time.sleep(INTO_S)
    port = next(port for port in ports if run in models(port))
    process = member(port, title)
    print(f"run {run}\nkilled {process.pid} {title}", flush=True)
    os.kill(process.pid, signal.SIGKILL)
    began = time.monotonic()
    while (passed := time.monotonic() - began) < WATCH_S:
        print(f"{passed:5.1f} s  {health(port)}", flush=True)
        time.sleep(0.25)


def measured(events: Path, variant: str) -> str:
    """Return the run of the variant once a cell of it is being measured. Raises TimeoutError."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        for line in events.read_text().splitlines() if events.exists() else ():
            event = json.loads(line) if line.startswith("{") and line.endswith("}") else {}
            if event.get("op") == "measure" and f"__{variant}__" in str(event.get("run")):
                return str(event["run"])
        time.sleep(0.1)
    raise TimeoutError(f"{variant} was never measured")


def models(port: int) -> str:
    """Return what /v1/models says, "" when nothing answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5) as reply:
            return str(reply.read().decode())
    except OSError:
        return ""


def member(port: int, title: str) -> psutil.Process:
    """Return the process with this title in the session of the server that listens on a port.

    The environment does not tell: a process that sets its title overwrites what others can read of it.
    """
    listening = (c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN)
    server = next(c.pid for c in listening if c.laddr.port == port)
    session = os.getsid(server or 0)
    return next(process for process in psutil.process_iter() if titled(process, title, session))


def titled(process: psutil.Process, title: str, session: int) -> bool:
    """Return whether a process of the session has this title."""
    try:
        return os.getsid(process.pid) == session and title in " ".join([process.name(), *process.cmdline()])
    except (psutil.Error, OSError):
        return False


def health(port: int) -> str:
    """Return the status of /health, or the name of what went wrong."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as reply:
            return str(reply.status)
    except urllib.error.HTTPError as answer:
        return str(answer.code)
    except OSError as problem:
        return type(getattr(problem, "reason", problem)).__name__


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], [int(port) for port in sys.argv[4].split(",")])
