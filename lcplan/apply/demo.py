"""The demo: a small campaign validated, planned, applied on the simulator and audited, in a folder of its own."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from lcplan.apply.events import Sink
from lcplan.apply.executor import Outcome
from lcplan.apply.prepare import make_plan
from lcplan.apply.run import apply
from lcplan.base.diagnostics import fail
from lcplan.base.files import write_atomic
from lcplan.plan import file
from lcplan.plan.model import Plan
from lcplan.recipe.starter import starter

_BLOCK = 20
_FIRST, _LAST = 18000, 28000
SPEED = 400.0


@dataclass(frozen=True)
class Demo:
    """What the demo made: its folder, plan and outcome."""

    folder: Path
    plan: Plan
    plan_file: Path
    outcome: Outcome

    @property
    def state(self) -> Path:
        """The state directory of the demo."""
        return self.folder / "state"


def demo(base: Path, say: Callable[[str], None], sink: Sink) -> Demo:
    """Run the demo below `base` and return what it made. Raises LcplanError."""
    folder = base / f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
    recipes, plan_file = folder / "recipes", folder / "plans" / "plan.json"
    write_atomic(recipes / "campaign.yaml", starter(free_ports()))
    say(f"$ lcplan validate {recipes}")
    made, warnings = make_plan([recipes], folder / "state", variables={}, runtime="sim")
    say(f"valid: {len(made.cells)} cells in {len(made.launches)} launches, {len(warnings)} warnings")
    say(f"$ lcplan plan {recipes} --runtime sim -o {plan_file}")
    write_atomic(plan_file, file.text(made))
    say(f"$ lcplan apply {plan_file}")
    outcome = apply(plan_file, folder / "state", variables={}, rehearsal=False, speed=SPEED, wait=False, sink=sink)
    return Demo(folder, made, plan_file, outcome)


def free_ports() -> int:
    """Return the first port of a block that is free now. Raises LcplanError when there is none."""
    start = _FIRST + os.getpid() * _BLOCK % (_LAST - _FIRST)
    for step in range(0, _LAST - _FIRST, _BLOCK):
        first = _FIRST + (start - _FIRST + step) % (_LAST - _FIRST)
        if all(_free(port) for port in range(first, first + _BLOCK)):
            return first
    raise fail("no-free-ports", f"no block of {_BLOCK} ports is free between {_FIRST} and {_LAST}")


def _free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
