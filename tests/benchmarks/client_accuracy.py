"""How far lcplan's client is off, against a server with known delays: TTFT 500 ms, a chunk every 20 ms.

Prints one row per number of streams, and one for `vllm bench serve` in the same run when it is installed and given the
folder of some tokenizer. Usage:

    python tests/benchmarks/client_accuracy.py [STREAMS ...] [--tokenizer FOLDER]

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
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from lcplan.workload import fleet, stats
from lcplan.workload.client import Client, sequence
from lcplan.workload.exchange import Record, Request
from lcplan.workload.prompts import Identity, alphabet, body, salted
from tests.workload_kit import delay_server

TTFT_MS, TPOT_MS, TOKENS, PROMPT = 500.0, 20.0, 50, 1000


def main(streams: Sequence[int], tokenizer: str | None) -> None:
    heads = (
        ("TTFT median", 13),
        ("error", 9),
        ("p90", 9),
        ("max", 9),
        ("TPOT error", 12),
        ("server", 9),
        ("CPU/stream", 12),
    )
    print(f"{'client':<18}{'streams':>8}" + "".join(f"{head:>{width}}" for head, width in heads))
    for count in streams:
        with delay_server(tokens=TOKENS, tell=True) as url:
            before = cpu_s()
            records = lcplan(url, count)
            spent = cpu_s() - before
            row(
                "lcplan", count, [r.ttft_s for r in records], [r.tpot_ms for r in records], spent / count, late(records)
            )
        if tokenizer and shutil.which("vllm"):
            with delay_server(tokens=TOKENS) as url:
                row("vllm bench serve", count, *bench(url, count, tokenizer))


def lcplan(url: str, streams: int) -> list[Record]:
    """Return the records of so many users, one request each."""
    import uvloop

    def request(index: int) -> Request:
        prompt = salted(Identity("l", "r", "c", 1, "1").salt(str(index)), PROMPT, alphabet())
        return Request(index, index, PROMPT, TOKENS, body(prompt, "m", TOKENS), PROMPT, keep_text=True)

    async def run() -> list[Record]:
        users = [[request(i)] for i in range(streams)]
        if fleet.processes(streams) > 1:
            return (await fleet.closed_loop(url, users, lambda _: None))[0]
        async with Client(url) as client:
            await client.open(streams)
            return await client.closed_loop([sequence(user) for user in users])

    return uvloop.run(run())


def cpu_s() -> float:
    """Return the CPU seconds of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def late(records: list[Record]) -> float | None:
    """Return how late the server itself was, in ms: the first text tells when it read a request and when it wrote."""
    told = ([float(word) for word in record.text.split()] for record in records)
    return stats.median((wrote - read) * 1e3 - TTFT_MS for read, wrote in told)


def bench(url: str, streams: int, tokenizer: str) -> tuple[list[float | None], list[float | None]]:
    """Return TTFT (s) and TPOT (ms) of every request of `vllm bench serve`."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["vllm", "bench", "serve", "--base-url", url, "--model", "m", "--tokenizer", tokenizer]
        command += ["--random-input-len", "100", "--random-output-len", str(TOKENS), "--num-prompts", str(streams)]
        command += ["--save-result", "--save-detailed", "--result-dir", folder, "--result-filename", "r.json"]
        subprocess.run(command, check=True, capture_output=True)
        found = json.loads((Path(folder) / "r.json").read_text())
    return found["ttfts"], [1e3 * sum(itl) / (TOKENS - 1) for itl in found["itls"]]


def row(
    name: str,
    streams: int,
    ttfts: list[float | None],
    tpots: list[float | None],
    cpu: float | None = None,
    server: float | None = None,
) -> None:
    ms = sorted(t * 1e3 for t in ttfts if t is not None)
    middle, high, tpot = stats.quantile(ms, 0.5), stats.quantile(ms, 0.9), stats.median(tpots)
    cost = f"{cpu * 1e3:9.1f} ms" if cpu is not None else ""
    errors = f"{middle - TTFT_MS:+9.2f}{high - TTFT_MS:+9.2f}{ms[-1] - TTFT_MS:+9.2f}{(tpot or 0) - TPOT_MS:+12.3f}"
    errors += f"{server:+9.2f}" if server is not None else " " * 9
    print(f"{name:<18}{streams:>8}{middle:>10.2f} ms{errors}{cost:>12}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("streams", type=int, nargs="*", default=[1, 4, 16, 64, 256])
    parser.add_argument("--tokenizer")
    given = parser.parse_args()
    main(given.streams, given.tokenizer)
