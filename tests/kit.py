"""What several tests use: running the command line, small campaigns, free ports."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).parents[1]


@dataclass(frozen=True)
class Ran:
    """The outcome of one command line."""

    code: int
    out: str
    err: str


def lcplan(*words: str, cwd: Path | None = None) -> Ran:
    """Run a command line inside this process, in a folder."""
    from lcplan.cli import run

    out, err = io.StringIO(), io.StringIO()
    before = Path.cwd()
    if cwd is not None:
        os.chdir(cwd)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = run(words)
    finally:
        os.chdir(before)
    return Ran(code, out.getvalue(), err.getvalue())


def start(*words: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a command line as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "lcplan", *words], cwd=cwd, env={**os.environ, **(env or {})}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def campaign(folder: Path, text: str, name: str = "campaign.yaml") -> Path:
    """Write a recipe file and return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder


def small(port: int, *, users: int = 2, seqs: int = 64, quad: str = "any", extra: str = "") -> str:
    """Return a campaign of three cells on one small stack, with port blocks from `port`."""
    return f"""\
lcplan: 1
engines: {{vllm: {{version: 0.31.0}}}}
models: {{m: {{path: /models/tiny, context: 32K}}}}
nodes:
  n:
    gpu: {{model: H200, memory: 141GiB, count: 8}}
    quads:
      a: {{gpus: [0, 1, 2, 3], ports: {port}-{port + 9}}}
      b: {{gpus: [4, 5, 6, 7], ports: {port + 10}-{port + 19}}}
stacks:
  s: {{model: m, engine: vllm, layout: tp1, context: 32K, args: {{max-num-seqs: {seqs}}}}}
workloads:
  w: {{kind: oneshot, prompt: 1K, output: 8}}
  g: {{kind: grid, output: 8, points: [{{prompt: 1K, users: {users}}}, {{prompt: 2K, users: 1}}]}}
experiments:
  first: {{stacks: [s], workloads: [w, g], quad: {quad}}}
{extra}"""
