"""What a runtime is told and what it answers. Handles are plain JSON, so that a journal can keep them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypedDict

LABEL_RUN = "LCPLAN_RUN"
LABEL_LINEAGE = "LCPLAN_LINEAGE"
LABEL_STATE = "LCPLAN_STATE"
LABEL_ROLE = "LCPLAN_ROLE"

STARTING_GRACE_S = 5.0
"""Seconds that a server gets to end which was never ready: vLLM 0.25.1 does not hear SIGTERM while it starts."""

Handle = dict[str, Any]


class Image(TypedDict):
    """An image as declared, and what it turned out to be: its id and its digest in the repository."""

    declared: str | None
    id: str | None
    digest: str | None


@dataclass(frozen=True)
class Container:
    """What a container needs beside the engine's argv. `options` are the stack's `docker:`, `numa` the quad's nodes.

    `stays_up` is set for a server that outlives the apply.
    """

    image: str
    options: Mapping[str, Any] = field(default_factory=dict)
    numa: Sequence[int] = ()
    fingerprint: str = ""
    stays_up: bool = False


@dataclass(frozen=True)
class Start:
    """One server to start. `argv` has no hole left; `secrets` maps a variable to the caller's variable it is read from.

    `folder` is the run's staging folder: the server writes `server.log` there by itself, never through a pipe. `state`
    is `host:/path` of the state directory that accounts for the server. `role` tells the servers of one run apart, ""
    when there is only one. `stand_in` is what the simulator is given instead of a command that it can't know.
    """

    run: str
    lineage: str
    argv: Sequence[str]
    env: Mapping[str, str]
    folder: Path
    secrets: Mapping[str, str] = field(default_factory=dict)
    gpus: Sequence[str] = ()
    cpus: str | None = None
    port: int = 0
    speed: float = 200.0
    header: Sequence[str] = ()
    container: Container | None = None
    state: str = ""
    role: str = ""
    stand_in: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The server's name, which no other server has."""
        return f"{self.run}.{self.role}" if self.role else self.run

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.folder / log_name(self.role)

    @property
    def script(self) -> Path:
        """The command that is executed and kept."""
        return self.folder / (f"cmd.{self.role}.sh" if self.role else "cmd.sh")


@dataclass(frozen=True)
class Found:
    """A server that carries lcplan's labels; `state` is `host:/path` of its state directory, "" when not known.

    `role` tells the servers of one run apart, "" when there is only one.
    """

    run: str
    lineage: str
    handle: Handle
    what: str
    state: str = ""
    role: str = ""

    @property
    def log(self) -> str:
        """The name of its log file in the folder of the run."""
        return log_name(self.role)


def log_name(role: str) -> str:
    """Return the name of a server's log file in the folder of its run."""
    return f"server.{role}.log" if role else "server.log"


class Runtime(Protocol):
    """How servers are started. Methods block; callers put them in threads."""

    name: str

    def script(self, start: Start) -> str:
        """Return the text of cmd.sh."""
        ...

    def address(self) -> str:
        """Return the host on which servers answer."""
        ...

    def shell(self) -> Sequence[str]:
        """Return the words in front of a command that make it run on the servers' machine, none for this one."""
        ...

    def resolve(self, image: str | None, cancelled: Callable[[], bool]) -> Image:
        """Make sure of a declared image and return what it is. Raises LcplanError when it can't be had."""
        ...

    def start(self, start: Start) -> Handle:
        """Start the server and return its handle. Raises LcplanError when nothing could be started."""
        ...

    def exited(self, handle: Handle) -> int | None:
        """Return the exit status of the server, None while it runs; -1 when it is gone and the status is not known."""
        ...

    def stop(self, handle: Handle, grace_s: float) -> None:
        """End the server and everything it started: politely, then by force after `grace_s` seconds."""
        ...

    def find(self, lineage: str | None) -> list[Found]:
        """Return what runs under lcplan's labels, of one lineage or of any."""
        ...
