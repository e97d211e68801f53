"""Runs a command line and fills the file system of the state directory at one line of its journal.

usage: python -m tests.filler OP PHASE STATE WORDS...   (the line is not written yet when the disk is full)
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

FILLER = "filler"


def fill(folder: Path) -> None:
    """Leave no byte free in the file system of a folder."""
    with (folder / FILLER).open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def main() -> None:
    """Patch the journal's one door to the disk, then run."""
    from lcplan.apply.journal import Journal
    from lcplan.cli import run

    wanted, folder, words = (sys.argv[1], sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]
    write, full = Journal.write, False

    def filling(self: Journal, op: str, phase: str, **data: Any) -> None:
        nonlocal full
        if (op, phase) == wanted and not full:
            full = True
            fill(folder)
        write(self, op, phase, **data)

    Journal.write = filling  # type: ignore[method-assign]
    os.environ["COLUMNS"] = "200"
    sys.exit(run(words))


if __name__ == "__main__":
    main()
