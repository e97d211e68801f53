"""How far lcplan's client is off, against a server with known delays: TTFT 500 ms, a chunk every 20 ms.

Prints one row per number of streams, and one for `vllm bench serve` in the same run when it is on PATH and given the
folder of some tokenizer. Usage:

    python tests/benchmarks/client_accuracy.py [STREAMS ...] [--runs N] [--tokenizer FOLDER]

Both send the same number of requests at once, of the same prompt length, each to a server of its own; runs of the two
take turns. A figure is the median over the runs, `runs` the least and the greatest error of their median TTFT. CPU is
that of the client's processes for one run; the tool's holds its start, so only the difference between two numbers of
streams tells what a stream costs.

The server runs in a process of its own; it waits for its moment actively for the last half millisecond, so what it does
late itself stands in the column `server`: from reading a request to writing its first chunk, less the delay.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from lcplan.workload import bench, fleet, stats
from lcplan.workload.client import Client, sequence
from lcplan.workload.exchange import Record, Request
from lcplan.workload.prompts import Identity, alphabet, body, salted
from tests.workload_kit import delay_server

TTFT_MS, TPOT_MS, TOKENS, PROMPT = 500.0, 20.0, 50, 1000


@dataclass(frozen=True)
class Run:
    """The errors of one run in ms, and the CPU seconds of the client; `server_ms` None where no text is kept."""

    median_ms: float
    p90_ms: float
    max_ms: float
    tpot_ms: float
    cpu_s: float
    server_ms: float | None


def main(streams: Sequence[int], runs: int, tokenizer: str | None) -> None:
    clients: dict[str, Callable[[str, int], list[Record]]] = {"lcplan": lcplan}
    if tokenizer and shutil.which("vllm"):
        clients["vllm bench serve"] = lambda url, count: tool(url, count, tokenizer)
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, median of {runs} runs, errors in ms")
    print(f"{'client':<18}{'streams':>8}{'TTFT':>9}{'runs':>19}{'p90':>9}{'max':>9}{'TPOT':>9}{'server':>9}{'CPU':>9}")
    for count in streams:
        found: dict[str, list[Run]] = {name: [] for name in clients}
        for _ in range(runs):
            for name, client in clients.items():
                found[name].append(run(client, count))
        for name in clients:
            row(name, count, found[name])
    print(f"load average {os.getloadavg()[0]:.1f}")


def run(client: Callable[[str, int], list[Record]], streams: int) -> Run:
    """Return what one client finds out about a new server. Raises ValueError when a request was not answered."""
    with delay_server(tokens=TOKENS, tell=True) as url:
        before = cpu_s()
        records = client(url, streams)
        spent = cpu_s() - before
    if len(records) != streams or any(r.error for r in records):
        raise ValueError(f"not all of {streams} requests were answered")
    late = sorted(r.ttft_s * 1e3 - TTFT_MS for r in records if r.ttft_s is not None)
    tpot = stats.median(r.tpot_ms for r in records) or 0.0
    return Run(
        stats.quantile(late, 0.5), stats.quantile(late, 0.9), late[-1], tpot - TPOT_MS, spent, server_late(records)
    )


def lcplan(url: str, streams: int) -> list[Record]:
    """Return the records of so many users, one request each."""
    import uvloop

    def request(index: int) -> Request:
        prompt = salted(Identity("l", "r", "c", 1, "1").salt(str(index)), PROMPT, alphabet())
        return Request(index, index, PROMPT, TOKENS, body(prompt, "m", TOKENS), PROMPT, keep_text=True)

    async def measure() -> list[Record]:
        users = [[request(i)] for i in range(streams)]
        if fleet.processes(streams) > 1:
            return (await fleet.closed_loop(url, users, lambda _: None))[0]
        async with Client(url) as client:
            await client.open(streams)
            return await client.closed_loop([sequence(user) for user in users])

    return uvloop.run(measure())


def tool(url: str, streams: int, tokenizer: str) -> list[Record]:
    """Return the records that a sweep reads from the result of `vllm bench serve`."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["vllm", "bench", "serve", "--base-url", url, "--model", "m", "--tokenizer", tokenizer]
        command += ["--dataset-name", "random", "--random-input-len", str(PROMPT), "--random-output-len", str(TOKENS)]
        command += ["--num-prompts", str(streams), "--max-concurrency", str(streams), "--disable-tqdm"]
        command += ["--save-result", "--save-detailed", "--result-dir", folder, "--result-filename", "r.json"]
        done = subprocess.run(command, capture_output=True, text=True)
        result = Path(folder) / "r.json"
        if not result.exists():
            raise ValueError(f"exit status {done.returncode}: {done.stderr[-2000:]}")
        return bench.read(json.loads(result.read_text()), bench.Point(PROMPT, TOKENS, streams, streams))


def cpu_s() -> float:
    """Return the CPU seconds of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def server_late(records: list[Record]) -> float | None:
    """Return how late the server itself was, in ms: the first text tells when it read a request and when it wrote."""
    told = ([float(word) for word in record.text.split()] for record in records if record.text)
    return stats.median((wrote - read) * 1e3 - TTFT_MS for read, wrote in told)


def row(name: str, streams: int, runs: Sequence[Run]) -> None:
    medians = [one.median_ms for one in runs]
    middle = [
        stats.median(column) or 0.0 for column in zip(*((r.p90_ms, r.max_ms, r.tpot_ms) for r in runs), strict=True)
    ]
    server, cpu = stats.median(r.server_ms for r in runs), stats.median(r.cpu_s for r in runs) or 0.0
    spread = f"{min(medians):+.2f} .. {max(medians):+.2f}"
    told = f"{server:+9.2f}" if server is not None else " " * 9
    errors = f"{middle[0]:+9.2f}{middle[1]:+9.2f}{middle[2]:+9.3f}"
    print(f"{name:<18}{streams:>8}{stats.median(medians):+9.2f}{spread:>19}{errors}{told}{cpu:>7.2f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("streams", type=int, nargs="*", default=[1, 4, 16, 64, 256])
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--tokenizer")
    given = parser.parse_args()
    main(given.streams, given.runs, given.tokenizer)
