"""What an apply itself takes on the simulator: seconds per launch and milliseconds per cell, everything included.

Run from the repository root: `python -m tests.benchmarks.apply_overhead`. Medians of three. Virtual time runs 100,000
times faster, so that what is left is starting, asking, recording and stopping. Launches wait for one another (one
quad); times of launches contain the start of the simulator, those of cells its answers. Budgets: 1 s and 50 ms; on a
busy machine only the CPU seconds mean anything.
"""

from __future__ import annotations

import resource
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
    one, launches, cells = (median(*size) for size in ((1, 1), (LAUNCHES + 1, 1), (1, CELLS + 1)))
    print(f"one launch of one cell, start of lcplan included: {one[0]:.2f} s, {one[1]:.2f} s of CPU")
    wall, cpu = ((launches[n] - one[n]) / LAUNCHES for n in (0, 1))
    print(f"per launch: {wall:.2f} s (budget 1 s), {cpu:.2f} s of CPU, the simulator's included")
    wall, cpu = ((cells[n] - one[n]) / CELLS * 1000 for n in (0, 1))
    print(f"per cell: {wall:.1f} ms (budget 50 ms), {cpu:.1f} ms of CPU, the simulator's included")


def median(launches: int, cells: int) -> tuple[float, float]:
    """Return the medians of three of wall and CPU seconds."""
    wall, cpu = zip(*(apply(launches, cells) for _ in range(3)), strict=True)
    return statistics.median(wall), statistics.median(cpu)


def apply(launches: int, cells: int) -> tuple[float, float]:
    """Return wall and CPU seconds of an apply of so many launches of so many cells, all processes together."""
    points = ", ".join(f"{{prompt: {256 + n}, users: 1}}" for n in range(cells))
    text = small(free_ports(), quad="a", extra="")
    grid = "points: [{prompt: 1K, users: 2}, {prompt: 2K, users: 1}]"
    text = text.replace(grid, f"points: [{points}]").replace("workloads: [w, g]", "workloads: [g]")
    text = text.replace("layout: tp1", "layout: tp4").replace("quad: a", f"quad: a, repeats: {launches}")
    with tempfile.TemporaryDirectory() as folder:
        campaign(Path(folder) / "recipes", text)
        run(folder, "plan", "recipes", "--runtime", "sim")
        began, used = time.perf_counter(), cpu_s()
        run(folder, "apply", "--sim-speed", "100000")
        return time.perf_counter() - began, cpu_s() - used


def cpu_s() -> float:
    """Return the CPU seconds of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(folder: str, *words: str) -> None:
    """Run a command line, which must succeed."""
    subprocess.run([sys.executable, "-m", "lcplan", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
