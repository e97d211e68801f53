"""The `lcplan` command. `version` is answered before anything else is imported."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    words = sys.argv[1:]
    if words in (["version"], ["--version"]):
        from lcplan import __version__

        sys.stdout.write(f"lcplan {__version__}\n")
        return
    from lcplan.cli import run

    sys.exit(run(words))


if __name__ == "__main__":
    main()
