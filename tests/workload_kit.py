"""Helpers of the workload tests: a delay server in a process of its own, and a child that measures it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from lcplan.workload import measure as measuring
from lcplan.workload.client import Client
from lcplan.workload.job import read_cell, read_job
from lcplan.workload.measurement import Session

HERE = Path(__file__).parent
SERVER = HERE / "delay_server.py"


@contextmanager
def delay_server(**behaviour: Any) -> Iterator[str]:
    """Run the delay server and hand out its base URL."""
    command = [sys.executable, str(SERVER), "0", json.dumps(behaviour)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = process.stdout.readline().split()[1]
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def job(url: str, folder: Path, **more: Any) -> dict[str, Any]:
    """Return the job message of a launch."""
    made = {"base_url": url, "engine": "vllm", "engine_version": "0.31.0", "served": "m", "context": 1048576}
    made |= {"simulated": False, "speed": 200, "lineage": "line", "run": "run1", "attempt": 1, "folder": str(folder)}
    return {"job": made | {"engines": 1, "metrics_url": None} | more}


def cell(workload: dict[str, Any], name: str = "", **more: Any) -> dict[str, Any]:
    """Return the measure message of a cell."""
    made = {"cell": name or workload["kind"], "fingerprint": "f", "workload": workload, "repeat": 1, "attempt": 1}
    return {"measure": made | more}


def measure(job_message: dict[str, Any], *cells: dict[str, Any]) -> list[dict[str, Any]]:
    """Measure some cells in this process and return their results as the child would write them."""
    made = read_job(job_message["job"])

    async def run() -> list[dict[str, Any]]:
        async with Client(made.base_url, simulated=made.simulated) as client:
            session = Session(made, client, lambda _: None)
            return [await measuring.measure(session, read_cell(message["measure"])) for message in cells]

    results: list[dict[str, Any]] = json.loads(json.dumps(uvloop.run(run())))
    return results


def by_child(job_message: dict[str, Any], *cells: dict[str, Any]) -> list[dict[str, Any]]:
    """Run the child over some cells and return its result and error events."""
    messages = [job_message, *cells, {"finish": True}]
    text = "".join(json.dumps(m) + "\n" for m in messages)
    command = [sys.executable, "-m", "lcplan.workload.child"]
    done = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return [event for event in events if event["event"] != "progress"]
