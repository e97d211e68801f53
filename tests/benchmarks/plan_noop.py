"""No-op plans of 1,000, 10,000 and 100,000 cells, start-up included, and `lcplan version` over bare Python.

usage: python -m tests.benchmarks.plan_noop [CELLS...]   prints medians of wall and CPU seconds, and peak memory.
A peer, when it is installed: `doit` with one task per cell, whose no-op run checks as many files' worth of state.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

RUNS = 5
BUDGET_S = {1_000: 0.25, 10_000: 0.6, 100_000: 4.0}
REPO = Path(__file__).parents[2]


def recipe(cells: int) -> str:
    """Return a campaign of that many cells: a hundred for each stack."""
    stacks = [f"s{i}" for i in range(max(1, cells // 100))]
    declared = "\n".join(
        f"  {name}: {{model: m, engine: vllm, layout: tp4, context: 1M, args: {{max-num-seqs: 64, seed: {i}}}}}"
        for i, name in enumerate(stacks)
    )
    prompts = ", ".join(str(1024 * (i + 1)) for i in range(10))
    users = ", ".join(str(i + 1) for i in range(10))
    return f"""\
lcplan: 1
engines: {{vllm: {{version: 0.31.0}}}}
models: {{m: {{path: /models/m, context: 1M}}}}
nodes:
  n:
    gpu: {{model: H200, memory: 141GiB, count: 8}}
    quads:
      a: {{gpus: [0, 1, 2, 3], ports: 8000-8099}}
      b: {{gpus: [4, 5, 6, 7], ports: 8100-8199}}
stacks:
{declared}
workloads:
  w: {{kind: sweep, output: 64, requests: {{per_user: 2}}, axes: {{prompt: [{prompts}], users: [{users}]}}}}
experiments:
  e: {{stacks: [{", ".join(stacks)}], workloads: [w]}}
"""


def prepare(folder: Path, cells: int) -> None:
    """Write a campaign whose every cell is recorded."""
    (folder / "recipes").mkdir()
    (folder / "recipes" / "c.yaml").write_text(recipe(cells))
    run(folder, "plan", "recipes", "--runtime", "sim")
    from lcplan.plan import file
    from lcplan.record import state

    plan, plan_id = file.parse((folder / "plans" / "plan.json").read_bytes(), "plan.json")
    made = state.new()
    # Every cell in one folder of a run: a state of this size without the minutes of sealing it.
    (folder / "state" / "runs" / "r").mkdir(parents=True)
    for cell in plan.cells:
        made.simulated.cells[cell.fingerprint] = state.CellRecord("r", cell.name, "done")
    state.note_plan(made.simulated, plan_id)
    state.save(folder / "state", made)


def run(folder: Path, *words: str) -> tuple[float, float]:
    """Return wall and CPU seconds of one command line."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "lcplan", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(REPO)})  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - start, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def median(folder: Path, *words: str) -> tuple[float, float]:
    """Return the medians of wall and CPU seconds over RUNS runs, after one that is not counted."""
    run(folder, *words)
    taken = [run(folder, *words) for _ in range(RUNS)]
    return statistics.median(w for w, _ in taken), statistics.median(c for _, c in taken)


def bare() -> float:
    """Return the median wall seconds of a Python that does nothing."""
    taken = []
    for _ in range(RUNS):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def doit(folder: Path, cells: int) -> float | None:
    """Return the median wall seconds of a no-op doit run with as many tasks, None when doit is not installed."""
    if shutil.which("doit") is None:
        return None
    (folder / "dodo.py").write_text(
        "def task_cell():\n"
        f"    for i in range({cells}):\n"
        "        yield {'name': str(i), 'actions': ['true'], 'uptodate': [True]}\n"
    )
    words = ["doit", "--verbosity", "0"]
    subprocess.run(words, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run(words, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def main(sizes: Sequence[int]) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder, start = Path(name), bare()
        wall, _ = median(folder, "version")
        print(f"version: {1000 * (wall - start):.0f} ms over bare Python ({1000 * start:.0f} ms); budget 60 ms")
    for cells in sizes:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            prepare(folder, cells)
            wall, cpu = median(folder, "plan", "recipes", "--runtime", "sim")
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            peer = doit(folder, cells)
            shown = f"; doit {peer:.2f} s" if peer is not None else ""
            print(f"{cells:>7,} cells: {wall:.3f} s wall, {cpu:.3f} s CPU, peak of all so far {peak:.0f} MB; "
                  f"budget {BUDGET_S.get(cells, float('nan'))} s{shown}")  # fmt: skip


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [*BUDGET_S])
