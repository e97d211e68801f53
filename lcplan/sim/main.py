"""Starting a simulated server from an engine's own command line."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from lcplan.sim.launch import Launch, StartFailure, read
from lcplan.sim.startup import fail_as_told

if TYPE_CHECKING:
    from lcplan.sim.server import Face

DEFAULT_SPEED = 200.0


def main(arguments: Sequence[str]) -> int:
    """Run `[--speed N] [--faults JSON] [--pool TOKENS] [--] ENGINE ARGV...` until it ends; return the exit status."""
    env = dict(os.environ)
    options, argv = _options(arguments, env)
    if argv and argv[0].rsplit("/", 1)[-1] == "vllm-router":
        return _route(argv[1:], options.speed)
    try:
        launch = read(argv, env, options.faults, options.pool)
    except ValueError as fault:
        print(f"lcplan sim: error: {fault}", file=sys.stderr)
        return 1
    except StartFailure as failure:
        return _failed(failure)
    return serve(launch, options.speed)


def serve(launch: Launch, speed: float) -> int:
    """Start up, serve, stop; return the exit status."""
    try:
        face = _face(launch)
        door = _door(launch.host, launch.port)
        fail_as_told(face)
        face.log.start()
    except StartFailure as failure:
        return _failed(failure)
    stuck = launch.faults.get("never_ready")
    if stuck and stuck["stage"] == "load":
        _sleep_for_ever()
    # The first lines are written before the HTTP library is loaded.
    import asyncio

    from lcplan.sim.server import Server

    async def run() -> int:
        return await Server(launch, face, speed).run(door)

    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.run(run())
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(run())


def _route(words: Sequence[str], speed: float) -> int:
    from lcplan.sim.routing import read as read_router

    try:
        plan = read_router(words)
        door = _door(plan.host, plan.port)
    except StartFailure as failure:
        return _failed(failure)
    import asyncio

    from lcplan.sim.router import Router

    async def run() -> int:
        return await Router(plan, speed).run(door)

    return asyncio.run(run())


def _options(arguments: Sequence[str], env: Mapping[str, str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="python -m lcplan.sim", usage="%(prog)s [--speed N] [--faults JSON] [--pool TOKENS] [--] ENGINE ARGV..."
    )
    pool = env.get("LCPLAN_SIM_POOL")
    parser.add_argument("--speed", type=float, default=float(env.get("LCPLAN_SIM_SPEED") or DEFAULT_SPEED))
    parser.add_argument("--faults", default=env.get("LCPLAN_SIM_FAULTS") or "")
    parser.add_argument("--pool", type=int, default=int(pool) if pool else None)
    parser.add_argument("argv", nargs=argparse.REMAINDER)
    options = parser.parse_args(list(arguments))
    if options.speed <= 0:
        parser.error("--speed must be above 0")
    argv = options.argv[1:] if options.argv[:1] == ["--"] else options.argv
    return options, argv


def _face(launch: Launch) -> Face:
    if launch.kind == "vllm":
        from lcplan.sim.vllm_face import VllmFace

        return VllmFace(launch)
    from lcplan.sim.sglang_face import SglangFace

    return SglangFace(launch)


def _door(host: str, port: int) -> socket.socket:
    """Bind the port early, as the engines do: a busy one fails at once, a free one refuses until the server listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    door = socket.socket(family, socket.SOCK_STREAM)
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        door.bind((host, port))
    except OSError as fault:
        text = f"[Errno {fault.errno}] {os.strerror(fault.errno or 0)}"
        raise StartFailure(f"Traceback (most recent call last):\nOSError: {text}", 1) from None
    door.setblocking(False)
    return door


def _failed(failure: StartFailure) -> int:
    if failure.text:
        print(failure.text, file=sys.stderr, flush=True)
    if failure.status < 0:
        os.kill(os.getpid(), -failure.status)
    return failure.status


def _sleep_for_ever() -> NoReturn:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        time.sleep(3600)
