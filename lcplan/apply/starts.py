"""From a launch to servers that can be started; and what must be free on the machine before and after them."""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lcplan.apply import gpus
from lcplan.apply.servers import LAST_POLL_S, Server, StepFailed, script_of_all
from lcplan.engine.base import RUN_ID
from lcplan.engine.openai.command import stand_in
from lcplan.plan.model import Launch, Placement
from lcplan.plan.model import Server as Planned
from lcplan.runtime import get as runtime_of
from lcplan.runtime.base import Container, Runtime, Start

if TYPE_CHECKING:
    from lcplan.apply.steps import Settings

_RELEASE_LIMIT_S = 120.0


def servers_of(
    launch: Launch, run: str, settings: Settings, rehearsal: bool, folder: Path, header: Sequence[str],
    *, served: str = "", stays_up: bool = False,
) -> list[Server]:  # fmt: skip
    """Return the servers of a launch, not started yet; what no runtime writes into their folder is written.

    They serve the name of the run unless one is given.
    """
    made = []
    for one in launch.servers:
        start = _start(one, launch, run, settings, folder, header, stays_up)
        made.append(Server(one, start, runtime_for(one, rehearsal), served))
    if len(made) > 1:
        (folder / "cmd.sh").write_text(script_of_all(made, header))
    if rehearsal:
        for server in made:
            server.start.script.write_text(server.runtime.script(server.start))
            if server.planned.kind == "openai":
                name = server.served if server.named else launch.model_path
                argv = stand_in(launch.model_path, launch.context, server.start.port, name)
                server.start = replace(server.start, stand_in=argv)
    return made


def runtime_for(planned: Planned, rehearsal: bool) -> Runtime:
    """Return the runtime of a server."""
    return runtime_of("sim" if rehearsal else planned.runtime)


async def require_free(launch: Launch, rehearsal: bool) -> None:
    """Make sure that the ports are free and the GPUs idle. Raises StepFailed `port_in_use`, `gpus_busy`."""
    assert launch.placement is not None
    for one in launch.servers:
        port, runtime = _placed(one, launch).port, runtime_for(one, rehearsal)
        owner = await asyncio.to_thread(gpus.port_owner, port, runtime.address())
        if owner is not None:
            raise StepFailed("port_in_use", f"port {port} is taken by {owner}",
                             "stop it, or give the quad other ports")  # fmt: skip
    if not rehearsal:
        shell = await asyncio.to_thread(runtime_of(launch.runtime).shell)
        busy = await asyncio.to_thread(gpus.busy, launch.placement.gpus, shell)
        if busy:
            raise StepFailed("gpus_busy", f"GPUs are in use: {'; '.join(busy)}",
                             "end those processes, or wait; lcplan never ends what it does not own")  # fmt: skip


async def until_released(numbers: Sequence[int], runtime: Runtime) -> None:
    """Wait until GPUs are free again: a server that is gone may still hold memory for a while. Raises StepFailed."""
    end = time.monotonic() + _RELEASE_LIMIT_S
    shell = await asyncio.to_thread(runtime.shell)
    while busy := await asyncio.to_thread(gpus.busy, numbers, shell):
        if time.monotonic() > end:
            raise StepFailed("gpus_not_released", f"GPUs are still in use: {'; '.join(busy)}")
        await asyncio.sleep(LAST_POLL_S)


def _start(
    planned: Planned, launch: Launch, run: str, settings: Settings, folder: Path, header: Sequence[str], stays_up: bool
) -> Start:
    """Return what a runtime is told of a server: the plan's argv with its hole filled."""
    placed = _placed(planned, launch)
    boxed = planned.runtime == "docker" and planned.image is not None
    return Start(
        run,
        settings.lineage,
        [run if word == RUN_ID else word for word in planned.argv],
        {name: value for name, value in planned.env.items() if isinstance(value, str)},
        folder,
        {name: value["from_env"] for name, value in planned.env.items() if isinstance(value, dict)},
        placed.uuids or tuple(str(gpu) for gpu in placed.gpus),
        placed.cpus,
        placed.port,
        settings.speed,
        header,
        Container(planned.image or "", launch.docker, placed.numa, launch.digest, stays_up) if boxed else None,
        f"{platform.node()}:{settings.root.resolve()}",
        planned.role,
    )


def _placed(planned: Planned, launch: Launch) -> Placement:
    assert launch.placement is not None
    return launch.placement.roles[planned.role] if planned.role else launch.placement
