"""What is seen of the servers that stay up: gone, altered by hand, unhealthy, other weights, an image that moved."""

from __future__ import annotations

import asyncio
import contextlib
import json
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lcplan.apply.secrets import api_key
from lcplan.base.diagnostics import Diagnostic, LcplanError, warning
from lcplan.base.files import write_atomic
from lcplan.runtime import get as runtime_of

if TYPE_CHECKING:
    from lcplan.apply.probe import Probe

_ANSWER_S = 15.0
"""Seconds in which a healthy server generates a token, or at least gets on with those of other people."""


def look(root: Path, serves: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, list[str]], list[Diagnostic]]:
    """Return what differs from the record of each server, and a warning for each that can't be looked at from here."""
    drift: dict[str, list[str]] = {}
    unseen: list[Diagnostic] = []
    for name, known in serves.items():
        try:
            drift[name] = list(_drift(serve_folder(root, name), known))
        except Unseen as why:
            unseen.append(warning("serve-not-seen", f"serve entry {name} counts as running: {why}"))
    return {name: found for name, found in drift.items() if found}, unseen


def serve_folder(root: Path, name: str) -> Path:
    """Return the folder of an entry's log, command and, for a container, its inspection when it was started."""
    return root / "serve" / name


def keep_inspection(folder: Path, role: str, handle: Mapping[str, Any], env: Mapping[str, Any]) -> None:
    """Keep what a container is when it is started, without the values of secrets. Raises OSError, LcplanError."""
    from lcplan.runtime.docker import RUNTIME

    found = RUNTIME.inspect(dict(handle))
    if found is not None:
        write_atomic(folder / _inspection(role), json.dumps(_without_secrets(found, env), indent=1) + "\n")


class Unseen(Exception):
    """A server that can't be looked at from this machine; the text says why."""


def require_here(known: Mapping[str, Any]) -> None:
    """Raise Unseen when a server is a process of another machine."""
    if known["runtime"] != "docker" and known["host"] != platform.node():
        raise Unseen(f"it is a process on {known['host']}, this is {platform.node()}")


def _drift(folder: Path, known: Mapping[str, Any]) -> Iterator[str]:
    require_here(known)
    altered = []
    for server in known["servers"]:
        shown = f"{server['role']}: " if server["role"] else ""
        gone, found = _container(folder, server) if server["runtime"] == "docker" else _process(known, server)
        if gone:
            yield f"{shown}{gone}"
            return
        altered += [f"{shown}altered by hand: {one}" for one in found]
    yield from altered
    yield from _image(known)
    yield from _weights(known)
    front = known["servers"][-1]
    if sick := asyncio.run(_health(front, known["served"])):
        yield f"unhealthy: {sick}"


def _process(known: Mapping[str, Any], server: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return why a server does not run, "" when it does, and what of its command or settings was changed."""
    import psutil

    runtime = runtime_of(server["runtime"])
    handle = server["handle"]
    if runtime.exited(handle) is not None:
        same = [one for one in runtime.find(known["lineage"]) if one.run == known["run"] and one.role == server["role"]]
        if not same:
            return "the server is gone", []
        handle = same[0].handle
    try:
        process = psutil.Process(handle["pid"])
        words, env = process.cmdline(), process.environ()
    except psutil.Error:
        return "the server is gone", []
    argv = list(server["argv"])
    changed = []
    # Engines give their processes titles; a title has fewer words than the command and tells nothing.
    if len(words) >= len(argv) and words[-len(argv) + 1 :] != argv[1:]:
        changed.append(f"args: {_first_difference(argv[1:], words)}")
    names = [name for name, value in server["env"].items() if isinstance(value, str) and env.get(name) != value]
    changed += [f"env: {', '.join(sorted(names))}"] if names else []
    return "", changed


def _first_difference(declared: list[str], words: list[str]) -> str:
    found = words[-len(declared) :]
    return next((f"{a} -> {b}" for a, b in zip(declared, found, strict=False) if a != b), "other words")


def _container(folder: Path, server: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the same of a container."""
    from lcplan.runtime.docker import RUNTIME
    from lcplan.runtime.docker_inspect import inspect_differences

    try:
        found = RUNTIME.inspect(server["handle"])
    except LcplanError as problem:
        raise Unseen(problem.diagnostics[0].message) from problem
    if found is None:
        return "the container is gone", []
    if not found["State"]["Running"]:
        return f"the container does not run ({found['State']['Status']})", []
    try:
        then = json.loads((folder / _inspection(server["role"])).read_bytes())
    except (OSError, ValueError):
        # The state came from git; on the machine that started the container the file is there.
        return "", []
    return "", inspect_differences(then, _without_secrets(found, server["env"]))


def _inspection(role: str) -> str:
    return f"container.{role}.json" if role else "container.json"


def _without_secrets(inspection: Mapping[str, Any], env: Mapping[str, Any]) -> dict[str, Any]:
    secret = {name for name, value in env.items() if not isinstance(value, str)}
    words = [word for word in inspection["Config"].get("Env") or () if word.partition("=")[0] not in secret]
    return {
        "Name": inspection["Name"],
        "Image": inspection["Image"],
        "Config": {**inspection["Config"], "Env": words},
        "HostConfig": inspection["HostConfig"],
    }


def _image(known: Mapping[str, Any]) -> Iterator[str]:
    image = known["image"]
    if known["runtime"] != "docker" or not image.get("id") or "@" in str(image["declared"]):
        return
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    from lcplan.runtime import docker_engine

    with contextlib.suppress(DockerException, RequestException, LcplanError):
        now = docker_engine.connect().inspect_image(image["declared"])["Id"]
        if now != image["id"]:
            yield f"the image behind {image['declared']} moved: {image['id'][:19]} -> {now[:19]}"


def _weights(known: Mapping[str, Any]) -> Iterator[str]:
    from lcplan.apply.sealing import model_files

    then, now = known["model_files"], model_files(Path(known["model_path"]))
    if then and now and then != now:
        names = sorted(name for name in {*then, *now} if then.get(name) != now.get(name))
        yield f"the model on disk changed: {', '.join(names)}"


async def _health(server: Mapping[str, Any], served: str) -> str:
    """Return what is wrong with a server that runs, "" when it is ready, ours, and generates."""
    from lcplan.apply.probe import Probe

    probe = Probe.open(server["probe"], server["url"], api_key(server["env"]))
    try:
        if await probe.ready() != "ready":
            return "it is not ready"
        names = await probe.served()
        if served not in names:
            return f"it serves {', '.join(names) or 'nothing'} instead of {served}"
        before = await probe.metrics()
        try:
            if await asyncio.wait_for(probe.token(served), _ANSWER_S):
                return ""
        except TimeoutError:
            if before and await _moves(probe, before, server["probe"]):
                return ""
        return f"it generated no token within {_ANSWER_S:.0f} s, although it says that it is healthy"
    finally:
        await probe.close()


async def _moves(probe: Probe, before: str, kind: str) -> bool:
    """Return whether tokens were generated for somebody meanwhile: a busy server is no dead one."""
    from lcplan.engine import dialect

    then, now = dialect.counters(before, kind), dialect.counters(await probe.metrics(), kind)
    return (now.generated or 0.0) > (then.generated or 0.0)
