"""The rehearsal: the engine's own argv is handed to lcplan's simulator, which runs as a process."""

from __future__ import annotations

import sys

from lcplan.engine.shell import render_script
from lcplan.runtime.base import Start
from lcplan.runtime.docker_command import container_script
from lcplan.runtime.process import ProcessRuntime


class SimRuntime(ProcessRuntime):
    """Runs the simulator with the argv that the real engine would get; GPUs and CPUs are not touched."""

    name = "sim"

    def script(self, start: Start) -> str:
        """Return cmd.sh as the real engine would be started, in its container if it has one."""
        if start.container is not None:
            return container_script(start)
        return render_script(start.argv, start.env, secrets=list(start.secrets), header=list(start.header))

    def exports(self, start: Start) -> dict[str, str]:
        """Return the engine's variables: cmd.sh, which would export them, is only written."""
        return dict(start.env)

    def command(self, start: Start) -> list[str]:
        """Return the command of the simulator."""
        argv = start.stand_in or start.argv
        return [sys.executable, "-m", "lcplan.sim", "--speed", f"{start.speed:g}", "--", *argv]


RUNTIME = SimRuntime()
