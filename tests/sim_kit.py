"""Helpers of the simulator's tests: a server in a process of its own, asked over plain HTTP."""

from __future__ import annotations

import ast
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

REAL = Path(__file__).parent / "real"
DEADLINE_S = 20.0
FLASH = ["vllm", "serve", "/m/zai-org__GLM-5.3-Flash", "--max-model-len", "1048576", "-tp", "4", "--max-num-seqs", "64"]
QWEN_DP = ["vllm", "serve", "/m/Qwen__Qwen3.6-35B-A3B", "--max-model-len", "1048576", "--data-parallel-size", "4"]
DSV4 = [
    *("python3", "-m", "sglang.launch_server", "--model-path", "/m/sgl-project__DeepSeek-V4-Flash-FP8"),
    *("--context-length", "1048576", "--tp-size", "4", "--kv-cache-dtype", "fp8_e4m3", "--page-size", "256"),
    *("--mem-fraction-static", "0.90", "--max-running-requests", "64"),
]


@dataclass
class Reply:
    """A whole reply."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@dataclass
class Sim:
    """A running simulator."""

    process: subprocess.Popen[bytes]
    port: int
    log_file: Path
    name: str = "m1"

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def get(self, path: str) -> Reply:
        return self.ask("GET", path)

    def post(self, path: str, body: Any = None, **headers: str) -> Reply:
        return self.ask("POST", path, body, **headers)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        data = None if body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, named, method=method)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as reply:
                return Reply(reply.status, dict(reply.headers), reply.read().decode())
        except urllib.error.HTTPError as fault:
            return Reply(fault.code, dict(fault.headers), fault.read().decode())

    def complete(self, prompt: Any, tokens: int, **more: Any) -> Reply:
        body = {"model": self.name, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, **more}
        return self.post("/v1/completions", body)

    def stream(self, prompt: Any, tokens: int, **more: Any) -> Stream:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        return Stream(self.complete(prompt, tokens, **{**options, **more}).text)

    def tokenize(self, text: str) -> list[int]:
        found: list[int] = self.post("/tokenize", {"prompt": text}).json["tokens"]
        return found

    def detokenize(self, ids: Sequence[int]) -> str:
        return next(iter(self.post("/detokenize", {"tokens": list(ids)}).json.values()))

    def metrics(self) -> dict[str, float]:
        lines = [line for line in self.get("/metrics").text.splitlines() if not line.startswith("#")]
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}

    def counter(self, name: str) -> float:
        """The sum over all labels."""
        return sum(value for series, value in self.metrics().items() if series.split("{")[0] == name)

    def open(self) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)

    def wait(self) -> int:
        return self.process.wait(DEADLINE_S)


class Stream:
    """The chunks of a streamed reply."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.stamps = [float(stamp) for stamp in re.findall(r"^: t=(.+)$", text, re.MULTILINE)]
        self.events = re.findall(r"^data: (.+)$", text, re.MULTILINE)
        self.chunks = [json.loads(event) for event in self.events if event != "[DONE]"]
        self.choices = [chunk["choices"][0] for chunk in self.chunks if chunk.get("choices")]
        self.usage = next((chunk["usage"] for chunk in reversed(self.chunks) if chunk.get("usage")), None)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def started(
    argv: Sequence[str],
    folder: Path,
    *options: str,
    faults: Any = None,
    env: Mapping[str, str] | None = None,
    name_it: bool = True,
) -> Iterator[Sim]:
    """Start a simulator without waiting for it."""
    port, log = free_port(), folder / "server.log"
    named = [*argv, "--port", str(port), "--host", "127.0.0.1", *(["--served-model-name", "m1"] if name_it else [])]
    more = ["--faults", json.dumps(faults)] if faults else []
    command = [sys.executable, "-m", "lcplan.sim", *options, *more, "--", *named]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})})
    try:
        yield Sim(process, port, log)
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def serving(
    argv: Sequence[str],
    folder: Path,
    *options: str,
    faults: Any = None,
    env: Mapping[str, str] | None = None,
    name_it: bool = True,
) -> Iterator[Sim]:
    """Start a simulator and wait until it is ready."""
    with started(argv, folder, *options, faults=faults, env=env, name_it=name_it) as sim:
        until(lambda: health(sim) == 200, sim)
        yield sim


def health(sim: Sim) -> int | None:
    """The status of /health, None when the connection is refused or reset."""
    try:
        return sim.get("/health").status
    except OSError:
        return None


def until(condition: Any, sim: Sim) -> None:
    """Wait for a condition; the server's log is shown when it does not come true."""
    limit = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < limit, sim.log[-3000:]
        time.sleep(0.002)


def captured(path: str) -> tuple[int, Any]:
    """A reply captured from a real server: status and JSON body."""
    status, body = ast.literal_eval((REAL / path).read_text().strip())
    return status, json.loads(body)


def captured_stream(path: str) -> Stream:
    """A stream captured from a real server."""
    lines = [line.partition(" ")[2] for line in (REAL / path).read_text().splitlines()]
    return Stream("\n".join(lines))


def keys(value: Any) -> Any:
    """The shape of a JSON value: its keys, and those of what it holds."""
    if isinstance(value, dict):
        return {name: keys(inner) for name, inner in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [keys(value[0])]
    return None


def families(text: str) -> set[str]:
    """The names of the families in a /metrics reply."""
    return set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))


def labels(text: str, family: str) -> set[str]:
    """The label names that a family uses."""
    found = re.search(rf"^{re.escape(family)}{{(.*)}}", text, re.MULTILINE)
    return set(re.findall(r'(\w+)="', found[1])) if found else set()
