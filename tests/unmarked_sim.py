"""The simulator without its marks: a server that apply takes for a real engine, so that a real tool may measure it.

Usage: unmarked_sim.py vllm serve MODEL ...; speed 1, so that virtual seconds are seconds. For tests alone: what is
recorded of it calls itself a measurement.
"""

from __future__ import annotations

import sys
from typing import Any

from lcplan.sim import server, startup, vllm_log
from lcplan.sim.main import main


def unmark() -> None:
    """Take the marks out of every reply and out of the log."""
    made = server.Server.__init__

    def init(self: server.Server, *words: Any, **named: Any) -> None:
        made(self, *words, **named)
        self.headers = {"Server": "uvicorn"}

    server.Server.__init__ = init  # type: ignore[method-assign]
    startup.NOTICE = vllm_log.NOTICE = "starting"  # type: ignore[attr-defined]


if __name__ == "__main__":
    unmark()
    sys.exit(main(["--speed", "1", "--", *sys.argv[1:]]))
