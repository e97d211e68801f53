"""What an apply itself takes on the simulator: seconds per launch and milliseconds per cell, everything included.

Run from the repository root: `python -m tests.benchmarks.apply_overhead`. Medians of three. Virtual time runs 100,000
times faster, so that what is left is starting, asking, recording and stopping. Launches wait for one another (one
quad); times of launches contain the start of the simulator, those of cells its answers. Budgets: 1 s and 50 ms.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lcplan.apply.demo import free_ports
from tests.kit import campaign, small

LAUNCHES, CELLS = 5, 100


def main() -> None:
    """Print one line per budget."""
    one = statistics.median(apply(1, 1) for _ in range(3))
    launches = statistics.median(apply(LAUNCHES + 1, 1) for _ in range(3))
    cells = statistics.median(apply(1, CELLS + 1) for _ in range(3))
    print(f"one launch of one cell, start of lcplan included: {one:.2f} s")
    print(f"per launch: {(launches - one) / LAUNCHES:.2f} s (budget 1 s)")
    print(f"per cell: {(cells - one) / CELLS * 1000:.1f} ms (budget 50 ms)")


def apply(launches: int, cells: int) -> float:
    """Return the seconds that an apply of so many launches of so many cells takes."""
    points = ", ".join(f"{{prompt: {256 + n}, users: 1}}" for n in range(cells))
    text = small(free_ports(), quad="a", extra="")
    grid = "points: [{prompt: 1K, users: 2}, {prompt: 2K, users: 1}]"
    text = text.replace(grid, f"points: [{points}]").replace("workloads: [w, g]", "workloads: [g]")
    text = text.replace("layout: tp1", "layout: tp4").replace("quad: a", f"quad: a, repeats: {launches}")
    with tempfile.TemporaryDirectory() as folder:
        campaign(Path(folder) / "recipes", text)
        run(folder, "plan", "recipes", "--runtime", "sim")
        began = time.perf_counter()
        run(folder, "apply", "--sim-speed", "100000")
        return time.perf_counter() - began


def run(folder: str, *words: str) -> None:
    """Run a command line, which must succeed."""
    subprocess.run([sys.executable, "-m", "lcplan", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
