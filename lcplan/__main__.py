"""The `lcplan` command. `version` is answered before anything else is imported."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line and exit with its code."""
    words = sys.argv[1:]
    if words in (["version"], ["--version"]):
        from lcplan import __version__

        sys.stdout.write(f"lcplan {__version__}\n")
        return
    from lcplan.cli import run

    _open_streams()
    sys.exit(run(words))


def _open_streams() -> None:
    """Give a process that was started with closed streams (a daemon's child) ones that lead nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - it stays open


if __name__ == "__main__":
    main()
