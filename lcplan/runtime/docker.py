"""Servers in containers, made over the Docker API from the very command that cmd.sh keeps, found again by labels."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lcplan.base.diagnostics import LcplanError, fail
from lcplan.base.files import write_atomic
from lcplan.engine.shell import read_script
from lcplan.runtime import docker_engine, docker_image
from lcplan.runtime.base import Found, Handle, Image, Start
from lcplan.runtime.docker_command import (
    LABEL_LINEAGE,
    LABEL_ROLE,
    LABEL_RUN,
    LABEL_STATE,
    container_request,
    container_script,
)
from lcplan.runtime.docker_inspect import as_inspect, inspect_differences

if TYPE_CHECKING:
    from docker import APIClient

    from lcplan.runtime.docker_log import Follower

_T = TypeVar("_T")
_BACK_S = 90.0
"""Seconds that a stop waits for an engine that does not answer, as while it is restarted."""
_GONE_S = 60.0
_POLL_S = 0.1
_START_HINTS = (
    ("could not select device driver", "the engine knows no GPUs; install the NVIDIA Container Toolkit"),
    ("port is already allocated", "another container publishes the port; stop it, or give the quad other ports"),
    ("is already in use by container", "remove that container, `lcplan state orphans` shows whose it is"),
    ("cpuset", "the quad's `cpus` or `numa` are not those of this machine"),
)


class DockerRuntime:
    """Runs each server as a container of a local or remote engine."""

    name = "docker"

    def __init__(self) -> None:
        self._clients: dict[str, APIClient] = {}
        self._guard = threading.Lock()
        self._followers: dict[str, Follower] = {}

    def script(self, start: Start) -> str:
        """Return cmd.sh: the equivalent `docker run`."""
        return container_script(start)

    def address(self) -> str:
        """Return the host on which servers answer."""
        return docker_engine.address()

    def shell(self) -> list[str]:
        """Return the words in front of a command that make it run beside the servers."""
        return docker_engine.shell()

    def resolve(self, image: str | None, cancelled: Callable[[], bool]) -> Image:
        """Return what an image is, pulled if need be. Raises LcplanError `image_pull`, `docker-unreachable`."""
        if image is None:
            raise fail("no-image", "the engine declares no image, so there is nothing to make a container from",
                       "give the engine `image:`, or the stack `runtime: process`")  # fmt: skip
        return docker_image.resolve(self._api(), image, cancelled)

    def start(self, start: Start) -> Handle:
        """Make the container, prove that it is what cmd.sh says, and start it; its output goes to the log file.

        Raises LcplanError: `missing-secret`, `start-failed`, `container-differs`, `docker-unreachable`.
        """
        from docker.errors import APIError

        secrets = _secrets(start)
        text = self.script(start)
        write_atomic(start.script, text, mode=0o755)
        name, body = container_request(read_script(text)[-1], secrets)
        api = self._api()
        made = ""
        try:
            made = api.create_container_from_config(body, name)["Id"]
            expected = as_inspect(name, body, api.inspect_image(body["Image"]))
            found = inspect_differences(expected, api.inspect_container(made))
            if found:
                raise fail("container-differs", f"the container is not what cmd.sh says: {'; '.join(found)}")
            start.log.touch()
            api.start(made)
        except BaseException as problem:
            if made:
                _discard(api, made)
            if isinstance(problem, APIError):
                raise _start_failed(str(problem.explanation or problem)) from problem
            raise
        handle = {**_handle(made, start.run), "log": str(start.log.resolve())}
        self._follow(handle, start.log)
        return handle

    def exited(self, handle: Handle) -> int | None:
        """Return the exit status, -1 when the container is gone, None while it runs or the engine does not answer."""
        from docker.errors import DockerException, NotFound
        from requests.exceptions import RequestException

        try:
            state = self._api(handle["engine"]).inspect_container(handle["id"])["State"]
        except NotFound:
            return -1
        except (DockerException, RequestException, LcplanError):
            return None
        return int(state["ExitCode"]) if state["Status"] in ("exited", "dead") else None

    def stop(self, handle: Handle, grace_s: float) -> None:
        """Stop the container (SIGKILL after `grace_s` seconds), complete its log, remove it.

        Waits for an engine that is being restarted. Raises LcplanError `docker-unreachable` when it stays away.
        """
        from docker.errors import NotFound

        container, engine = handle["id"], handle["engine"]
        try:
            self._persist(engine, lambda api: api.stop(container, timeout=round(grace_s)))
            follower = self._followers.pop(container, None)
            if follower is not None:
                follower.close()
            self._complete(handle)
            self._persist(engine, lambda api: _remove(api, container))
        except NotFound:
            return
        end = time.monotonic() + _GONE_S
        while self.exited(handle) != -1:
            if time.monotonic() > end:
                raise fail("stop-failed", f"the container of {handle['run']} can't be removed",
                           f"`docker rm --force {container[:12]}` may say why")  # fmt: skip
            time.sleep(_POLL_S)

    def find(self, lineage: str | None) -> list[Found]:
        """Return the labelled containers, running or not. Raises LcplanError `docker-unreachable`."""
        if not docker_engine.configured():
            return []
        wanted = [LABEL_RUN] if lineage is None else [LABEL_RUN, f"{LABEL_LINEAGE}={lineage}"]
        found = []
        here = docker_engine.endpoint()
        for one in self._persist(here, lambda api: api.containers(all=True, filters={"label": wanted}), 0.0):
            labels = one["Labels"]
            run = labels[LABEL_RUN]
            handle = _handle(one["Id"], run)
            what = f"container {one['Id'][:12]} ({one['Image']}, {one['State']})"
            found.append(Found(run, labels.get(LABEL_LINEAGE, ""), handle, what, labels.get(LABEL_STATE, ""),
                               labels.get(LABEL_ROLE, "")))  # fmt: skip
        return found

    def inspect(self, handle: Handle) -> dict[str, Any] | None:
        """Return the inspection of a container, None when it is gone."""
        from docker.errors import NotFound

        try:
            found: dict[str, Any] = self._persist(handle["engine"], lambda api: api.inspect_container(handle["id"]))
        except NotFound:
            return None
        return found

    def _api(self, engine: str = "") -> APIClient:
        engine = engine or docker_engine.endpoint()
        with self._guard:
            if engine not in self._clients:
                self._clients[engine] = docker_engine.connect(engine)
            return self._clients[engine]

    def _persist(self, engine: str, ask: Callable[[APIClient], _T], limit_s: float = _BACK_S) -> _T:
        """Ask until the engine answers. Raises LcplanError `docker-unreachable`, and what the engine answers."""
        from docker.errors import APIError
        from requests.exceptions import RequestException

        end = time.monotonic() + limit_s
        while True:
            try:
                return ask(self._api(engine))
            except APIError:
                raise
            except (RequestException, LcplanError) as problem:
                with self._guard:
                    self._clients.pop(engine, None)
                if time.monotonic() >= end:
                    if isinstance(problem, LcplanError):
                        raise
                    raise fail("docker-unreachable", f"the Docker engine at {engine} stopped answering",
                               "start it; the next `lcplan apply` removes what is left") from problem  # fmt: skip
                time.sleep(_POLL_S)

    def _follow(self, handle: Handle, log: Path) -> None:
        from lcplan.runtime.docker_log import Follower

        self._followers[handle["id"]] = Follower(lambda: docker_engine.connect(handle["engine"]), handle["id"], log)

    def _complete(self, handle: Handle) -> None:
        from lcplan.runtime.docker_log import complete

        path = Path(handle.get("log", ""))
        if path.name and path.parent.is_dir():
            # A full disk keeps what was followed; the container goes all the same.
            with contextlib.suppress(OSError):
                self._persist(handle["engine"], lambda api: complete(api, handle["id"], path))


def _handle(container: str, run: str) -> Handle:
    """Return what a journal keeps of a container: it is asked for at the engine that made it, whatever is set later."""
    return {"runtime": "docker", "engine": docker_engine.endpoint(), "id": container, "run": run}


def _secrets(start: Start) -> dict[str, str]:
    for name, origin in start.secrets.items():
        if origin not in os.environ:
            raise fail("missing-secret", f"the variable {origin} is not set; {name} is read from it",
                       f"export {origin} before `lcplan apply`")  # fmt: skip
    return {name: os.environ[origin] for name, origin in start.secrets.items()}


def _start_failed(reason: str) -> LcplanError:
    hint = next((hint for words, hint in _START_HINTS if words in reason), "")
    return fail("start-failed", f"the container could not be started: {reason[:500]}", hint)


def _discard(api: APIClient, container: str) -> None:
    """Remove a container that never ran; what can't be removed now is found by its label later."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        api.remove_container(container, force=True, v=True)
    except (DockerException, RequestException):
        return


def _remove(api: APIClient, container: str) -> None:
    from docker.errors import APIError

    try:
        api.remove_container(container, force=True, v=True)
    except APIError as problem:
        # 409: somebody else is removing it already.
        if problem.status_code != 409:
            raise


RUNTIME = DockerRuntime()
