"""Runs a command line and kills it with SIGKILL at the N-th line of its journal: before the line is written, or after.

usage: python -m tests.killer N before|after WORDS...   (exit status -9 when it was killed, else the command's)
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any


def main() -> None:
    """Patch the journal's one door to the disk, then run."""
    from lcplan.apply.journal import Journal
    from lcplan.cli import run

    limit, when = int(sys.argv[1]), sys.argv[2]
    write, count = Journal.write, 0

    def killing(self: Journal, op: str, phase: str, **data: Any) -> None:
        nonlocal count
        count += 1
        if count == limit and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        write(self, op, phase, **data)
        if count == limit and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)

    Journal.write = killing  # type: ignore[method-assign]
    sys.exit(run(sys.argv[3:]))


if __name__ == "__main__":
    main()
