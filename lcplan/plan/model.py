"""What a plan is made of. Everything here is a value; `file.py` writes it, the executor walks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from lcplan.capacity.pool import Past

Action = Literal["+", "~", "-/+", "-", "=", "!"]
ACTIVE: tuple[Action, ...] = ("+", "-/+", "~")
"""What is done to a launch that runs."""
FINGERPRINT_VERSION = 1

WORKLOAD_KINDS = ("needle", "oneshot", "grid", "sweep", "agent", "ramp")
RUNTIMES = ("process", "docker", "sim")
"""What this version measures, and what it starts servers with; anything else is planned as blocked."""


@dataclass(slots=True)
class Cell:
    """One point of an experiment on one launch: the unit of planning, failing, resuming and recording.

    Of a cell that is to be measured, `fits` says how many of its sequences fit at once and where that comes from,
    `limited` whether it has more users (None: known after launch); it is measured if one of `requires` is met.
    """

    name: str
    fingerprint: str
    launch: str
    experiments: list[str]
    stack: str
    variant: str | None
    workload: str
    kind: str
    axes: Mapping[str, float]
    definition: Mapping[str, Any]
    repeat: int
    length: int
    users: int
    source: str
    action: Action = "+"
    reason: str = ""
    recorded: str | None = None
    blocks: bool = False
    requires: list[dict[str, Any]] = field(default_factory=list)
    fits: dict[str, Any] | None = None
    limited: bool | None = None


@dataclass(slots=True)
class Placement:
    """Where a launch runs. `gpus` are indices; `uuids` stand beside them when the node declares them.

    `evicts` names the serve entries that must leave for it. A split layout has a placement for each of its servers in
    `roles` (`prefill`, `decode`, `router`; `prefill-1`, ... when there are several); its own port is the router's.
    """

    node: str
    quads: tuple[str, ...]
    gpus: tuple[int, ...]
    uuids: tuple[str, ...] = ()
    cpus: str | None = None
    numa: tuple[int, ...] = ()
    port: int = 0
    ports: tuple[int, int] = (0, 0)
    reason: str = ""
    evicts: tuple[str, ...] = ()
    roles: dict[str, Placement] = field(default_factory=dict)

    @property
    def quad(self) -> str | None:
        """The quad's letter, or None when the launch takes several quads."""
        return self.quads[0] if len(self.quads) == 1 else None


class Server(NamedTuple):
    """One server of a launch as it is started: `role` is "" unless the layout is split, values of `env` may be
    `{"from_env": NAME}`."""

    role: str
    kind: str
    runtime: str
    image: str | None
    argv: list[str]
    env: dict[str, Any]


@dataclass(slots=True)
class Launch:
    """One start of one stack variant on one placement: the last of its `servers` is the one that is asked."""

    id: str
    stack: str
    variant: str | None
    repeat: int
    engine: str
    kind: str
    version: str | None
    image: str | None
    model: str
    model_path: str
    layout: str
    gpus: int
    engines: int
    context: int | None
    runtime: str
    behaviour: dict[str, Any]
    digest: str
    pin: str | None
    env: dict[str, Any]
    docker: dict[str, Any]
    ready_timeout_s: int
    label: str
    source: str
    cells: list[Cell] = field(default_factory=list)
    servers: list[Server] = field(default_factory=list)
    placement: Placement | None = None
    action: Action = "+"
    reason: str = ""
    blocked: str = ""
    cap: int | None = None
    cap_source: str = ""
    capacity: dict[str, Any] = field(default_factory=dict)
    quiet: bool = False
    preempt: bool = False
    priority: int = 0
    load_s: float = 0.0
    measure_s: float = 0.0
    start_s: float = 0.0
    after: tuple[str, ...] = ()

    @property
    def argv(self) -> list[str]:
        """The command line of the server that is asked; [] while nothing is to be started."""
        return self.servers[-1].argv if self.servers else []

    @property
    def seconds(self) -> float:
        """Estimated seconds from start to stop."""
        return self.load_s + self.measure_s


class Recorded(NamedTuple):
    """Where a cell was recorded: run, its name there, status."""

    run: str
    cell: str
    status: str


@dataclass(slots=True)
class Snapshot:
    """The recorded side of the comparison, as the state tells it.

    `fields` returns the behaviour of a run's launch and the definition of one of its cells, or None when the manifest
    can't be read; it is asked only when something changed. `durations` are the seconds that cells took, by fingerprint
    or `run/cell`; `loads` those from start to ready, by stack. `past` returns what earlier runs of a launch logged of
    their pools. `serves` are the servers that stay up, by entry, `drift` what was seen of them that is not as recorded.
    """

    lineage: str | None = None
    serial: int = 0
    cells: Mapping[str, Recorded] = field(default_factory=dict)
    fields: Callable[[str, str], tuple[dict[str, Any], dict[str, Any]] | None] = lambda run, cell: None
    durations: Mapping[str, float] = field(default_factory=dict)
    loads: Mapping[str, float] = field(default_factory=dict)
    past: Callable[[Launch], Past | None] = lambda launch: None
    serves: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    drift: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(slots=True)
class Serve:
    """A serve entry: what is to run (no launch when its entry is gone), and what becomes of what runs.

    `recorded` is the server that the state tells of, `held` where it is, `place` where the entry is to be. `drift` says
    what differs from the record although no recipe changed. `preempted_by` are the launches that it makes way for,
    `makes_way` whether it is stopped only for them.
    """

    name: str
    launch: Launch | None
    action: Action
    reason: str
    drift: list[str] = field(default_factory=list)
    recorded: str | None = None
    held: dict[str, Any] | None = None
    place: dict[str, Any] = field(default_factory=dict)
    preempted_by: tuple[str, ...] = ()
    makes_way: bool = False


class Operation(NamedTuple):
    """One step of an apply: its id, what it does, to which launch or `serve/<entry>`, after which steps, with what."""

    id: str
    op: str
    launch: str
    after: tuple[str, ...]
    detail: dict[str, Any]


@dataclass(slots=True)
class Plan:
    """Everything that an apply will do, and why."""

    lineage: str | None
    serial: int
    recipes: str
    blobs: dict[str, str]
    roots: tuple[str, ...]
    variables: dict[str, Any]
    node: str
    runtime: str | None
    selectors: dict[str, list[str]]
    launches: list[Launch]
    cells: list[Cell]
    operations: list[Operation]
    summary: dict[str, Any]
    warnings: list[dict[str, Any]]
    policy: dict[str, Any]
    gates: dict[str, Any]
    serves: list[Serve] = field(default_factory=list)
    commit: str | None = None
    dirty: bool | None = None
    fingerprint_version: int = FINGERPRINT_VERSION

    @property
    def changes(self) -> bool:
        """Whether an apply of this plan would do anything."""
        return bool(self.operations)
