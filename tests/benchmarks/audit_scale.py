"""Audit at scale: `audit why` over 10,000 runs, `audit verify` against sha256 of the same bytes, loading 100,000 cells.

Run from the repository root: `python -m tests.benchmarks.audit_scale [RUNS]`. Medians of five; `why` is timed as a
whole process.
"""

from __future__ import annotations

import hashlib
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from lcplan.audit.verify import verify
from lcplan.record import state
from tests import statekit


def main(runs: int) -> None:
    """Print one line per budget."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "state"
        fill(root, runs)
        why = [sys.executable, "-m", "lcplan", "audit", "why", "58.61 s", "--state", str(root)]
        subprocess.run(why, capture_output=True)  # makes the index
        asked = median(lambda: subprocess.run(why, capture_output=True))
        print(f"audit why over {runs:,} runs: {asked:.3f} s")
        logs(root)
        hashed, bare = median(lambda: verify(root, ["logs"])), median(lambda: sha256(root / "runs" / "logs"))
        print(f"audit verify: {hashed:.3f} s, sha256 of the same bytes one after the other: {bare:.3f} s")
        cells(root, 100_000)
        print(f"load 100,000 cells: {median(lambda: state.load(root)):.3f} s")


def fill(root: Path, runs: int) -> None:
    """Seal many small runs; nothing has to outlive a power cut here."""
    sync, os.fsync = os.fsync, lambda _: None
    draw = random.Random(1).uniform
    try:
        for number in range(runs):
            metrics = {**statekit.METRICS, "ttft_s": statekit.metric(draw(1, 100), "s", p90=draw(1, 100))}
            points = [statekit.cell(f"grid.n={number}.users={users}", metrics=metrics) for users in range(10)]
            run = f"glm53_flash__tp4_a__1024k__vllm__1010-{number:06d}"
            statekit.seal(root, run, cells=points, fingerprint=str(number // 3))
    finally:
        os.fsync = sync


def logs(root: Path) -> None:
    """Seal one run of 256 MB in 64 files."""
    from lcplan.record import manifest

    staging = root / "staging" / "logs"
    staging.mkdir(parents=True)
    for number in range(64):
        (staging / f"{number}.log").write_bytes(os.urandom(4_000_000))
    manifest.seal(root, staging, {"run": "logs", "simulated": False, "cells": []})


def cells(root: Path, count: int) -> None:
    """Save a state of many cells."""
    made = state.new()
    for number in range(count):
        run = f"glm53_flash__tp4_a__1024k__vllm__1010-{number % 1000:06d}"
        fingerprint = hashlib.sha256(str(number).encode()).hexdigest()
        made.real.cells[fingerprint] = state.CellRecord(run, f"grid.n={number}", "done")
    state.save(root, made)


def sha256(folder: Path) -> None:
    """Hash all files of a folder."""
    for file in folder.iterdir():
        with file.open("rb") as opened:
            hashlib.file_digest(opened, "sha256")


def median(action: Callable[[], object]) -> float:
    """Return the median seconds of five calls."""
    times = []
    for _ in range(5):
        before = time.perf_counter()
        action()
        times.append(time.perf_counter() - before)
    return statistics.median(times)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
