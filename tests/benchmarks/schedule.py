"""Prints how long placement and schedule take, and how near the makespan is to its lower bound.

Run as `python -m tests.benchmarks.schedule [LAUNCHES]` (10,000 by default, on 64 nodes of two quads; budget 2 s).
"""

from __future__ import annotations

import random
import statistics
import sys
import time

from lcplan.plan.schedule import schedule
from tests.schedule_kit import launch, machine

REPEATS = 5


def main(count: int) -> None:
    """Print the medians for mixes of layouts."""
    for name, sizes in (("quads", (4,)), ("quads and nodes", (4, 4, 4, 8)), ("all sizes", (1, 2, 4, 4, 8))):
        dice = random.Random(name)
        some = [launch(f"l{i}", dice.choice(sizes), dice.uniform(100, 4000)) for i in range(count)]
        took = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            times = schedule(some, machine(64, 2))
            took.append(time.perf_counter() - began)
        over = times.makespan / times.bound - 1
        print(f"{name:>16}: {count:,} launches in {statistics.median(took):.2f} s, {over:.2%} above the lower bound")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
