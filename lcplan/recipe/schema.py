"""The recipe language as pydantic models: every key a user may write, with its type and unit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, PlainValidator

from lcplan.base.layout import Layout, parse_layout
from lcplan.base.units import parse_gib, parse_tokens
from lcplan.recipe.yamltree import written

LONGEST_NAME = 64
"""Characters of a declared name: stack, variant and quad stand together in a run id, which is one part of a path."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PORTS = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_name(value: str) -> str:
    """Return a declared name, or raise ValueError: names become parts of paths, run ids and selectors."""
    if not isinstance(value, str) or not _NAME.fullmatch(value) or ".." in value or "__" in value:
        raise ValueError(
            f"'{value}' is no safe name: use letters, digits, '.', '_' and '-', start with a letter or digit, "
            "without '..' or '__'"
        )
    if len(value) > LONGEST_NAME:
        raise ValueError(f"a name of {len(value)} characters is no safe name: at most {LONGEST_NAME} are taken")
    return value


def parse_rate(value: object) -> float:
    """Return requests per second, whole ones as an integer; raise ValueError for what is no positive number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e6:
        raise ValueError(f"expected requests per second, a number above 0, got '{value}'")
    return int(value) if value == int(value) else value


def _ports(value: object) -> tuple[int, int]:
    if isinstance(value, int) and not isinstance(value, bool):
        value = f"{value}-{value}"
    found = _PORTS.fullmatch(str(value))
    if not found or not 0 < int(found[1]) <= int(found[2]) <= 65535:
        raise ValueError(f"expected a block of ports such as 8000-8099, got '{value}'")
    return int(found[1]), int(found[2])


def _env_name(value: str) -> str:
    if not _ENV_NAME.fullmatch(value):
        raise ValueError(f"'{value}' is no name of an environment variable")
    return value


def _env_value(value: object) -> EnvValue:
    if isinstance(value, Mapping):
        if set(value) != {"from_env"} or not _ENV_NAME.fullmatch(str(value["from_env"])):
            raise ValueError("a secret is written {from_env: NAME}")
        return dict(value)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return written(value)
    raise ValueError("expected text or a number; quote booleans, programs disagree about them")


EnvValue = str | dict[str, str] | None
Name = Annotated[str, AfterValidator(check_name)]
Tokens = Annotated[int, BeforeValidator(parse_tokens), Field(ge=1)]
GiB = Annotated[float, BeforeValidator(parse_gib)]
Ports = Annotated[tuple[int, int], PlainValidator(_ports)]
LayoutField = Annotated[
    Layout,
    PlainValidator(lambda v: v if isinstance(v, Layout) else parse_layout(v)),
    PlainSerializer(lambda v: v.text, return_type=str),
]
Env = dict[Annotated[str, AfterValidator(_env_name)], Annotated[EnvValue, PlainValidator(_env_value)]]
Count = Annotated[int, Field(ge=1, strict=True)]
Rate = Annotated[float, BeforeValidator(parse_rate)]
Runtime = Literal["process", "docker", "slurm"]


class Part(BaseModel):
    """Base of all parts of a recipe: unknown keys are errors, scalars are not coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, arbitrary_types_allowed=True)


class EngineDecl(Part):
    """An engine release that stacks name: its kind (the entry's own name by default), version and image."""

    kind: Literal["vllm", "sglang", "openai", "vllm-router"] | None = None
    version: str | None = None
    image: str | None = None
    command: list[str] | None = None
    runtime: Runtime | None = None


class Docker(Part):
    """How a container is made around an engine."""

    ipc: str | None = None
    network: str | None = None
    volumes: list[str] | None = None
    shm_size: str | None = None
    ulimits: dict[str, int | str] | None = None
    bind_memory: bool | None = None
    user: str | None = None
    stop_grace_s: Count | None = None


class Model(Part):
    """A model: where its files are and what of it decides lengths, sizes and layouts."""

    path: str
    context: Tokens | None = None
    moe: bool | None = None
    provenance: str | None = None
    revision: str | None = None
    config: str | None = None
    weights: GiB | None = None


class Gpu(Part):
    """The GPUs of a node: model, memory of one, how many."""

    model: str
    memory: GiB
    count: Count


class QuadDecl(Part):
    """A named group of GPUs that is launched together."""

    gpus: list[Annotated[int, Field(ge=0, strict=True)]]
    uuids: list[str] | None = None
    numa: list[Annotated[int, Field(ge=0, strict=True)]] | None = None
    cpus: str | None = None
    ports: Ports


class NodeDecl(Part):
    """One machine. `islands` are the groups of GPUs that NVLink joins, where that is worth declaring."""

    gpu: Gpu
    quads: dict[Name, QuadDecl]
    islands: list[list[Annotated[int, Field(ge=0, strict=True)]]] | None = None
    host: str | None = None
    runtime: Runtime | None = None


class Capacity(Part):
    """What one engine rank holds, where neither a prediction nor a log tells: tokens of its pool, sequences at once."""

    pool_tokens: Tokens | None = None
    sequences: Count | None = None


class Overlay(Part):
    """What a variant changes in a stack: mappings merge by key, the rest replaces, null removes."""

    args: dict[str, Any] = {}
    env: Env = {}
    docker: Docker | None = None
    engine: str | None = None
    layout: LayoutField | None = None
    context: Tokens | None = None
    rope_scaling: dict[str, Any] | None = None
    runtime: Runtime | None = None
    capacity: Capacity | None = None


class Role(Part):
    """One server of a split layout."""

    engine: str | None = None
    layout: LayoutField | None = None
    quad: str | None = None
    args: dict[str, Any] = {}
    env: Env = {}


class Stack(Part):
    """Everything that decides the engine's command line."""

    model: str
    engine: str
    layout: LayoutField
    context: Tokens | None = None
    args: dict[str, Any] = {}
    env: Env = {}
    docker: Docker | None = None
    rope_scaling: dict[str, Any] | None = None
    runtime: Runtime | None = None
    variants: dict[Name, Overlay] = {}
    roles: dict[Literal["prefill", "decode", "router"], Role] = {}
    ready_timeout_s: Count | None = None
    capacity: Capacity | None = None


class Defaults(Part):
    """What every stack starts from."""

    docker: Docker | None = None
    env: Env = {}
    args: dict[str, Any] = {}
    runtime: Runtime | None = None
    ready_timeout_s: Count | None = None


class Workload(Part):
    """Base of the workloads. `AXES` are the fields that may be given as axes of a matrix."""

    AXES: ClassVar[tuple[str, ...]] = ()
    kind: str
    axes: dict[str, list[Any]] = {}


class Needle(Workload):
    """A random code planted at each depth and asked for."""

    AXES: ClassVar[tuple[str, ...]] = ("prompt",)
    kind: Literal["needle"]
    prompt: Tokens | None = None
    depths: Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=1)]
    output: Tokens = 512


class Oneshot(Workload):
    """One request alone: time to first token and decode speed."""

    AXES: ClassVar[tuple[str, ...]] = ("prompt", "output")
    kind: Literal["oneshot"]
    prompt: Tokens | None = None
    output: Tokens | None = None


class Requests(Part):
    """How many requests a point sends: `per_user` x users, at least `min`; `total` where they come at a rate."""

    per_user: Count | None = None
    min: Count = 1
    total: Count | None = None


class GridPoint(Part):
    """One point of a grid: so many users at once, or requests that come at a rate."""

    prompt: Tokens
    users: Count | None = None
    rate: Rate | None = None
    output: Tokens | None = None
    name: Name | None = None


class Grid(Workload):
    """(prompt, users) points, each with that many requests at once, or (prompt, rate) points: requests per second.

    With `needle`, a needle is asked while the load of a point runs.
    """

    AXES: ClassVar[tuple[str, ...]] = ("prompt", "users", "rate", "output")
    kind: Literal["grid"]
    output: Tokens | None = None
    points: list[GridPoint] = []
    requests: Requests | None = None
    needle: bool | None = None


class Sweep(Workload):
    """Points measured with `vllm bench serve`, at a fixed number of users or at a rate of requests per second."""

    AXES: ClassVar[tuple[str, ...]] = ("prompt", "users", "rate", "output")
    kind: Literal["sweep"]
    prompt: Tokens | None = None
    users: Count | None = None
    rate: Rate | None = None
    needle: bool | None = None
    output: Tokens | None = None
    requests: Requests
    bench: str | list[str] | None = None


class Agent(Workload):
    """Sessions of several turns that re-send a shared history."""

    AXES: ClassVar[tuple[str, ...]] = ("users", "history", "new", "output")
    kind: Literal["agent"]
    history: Tokens | None = None
    turns: Count
    new: Tokens | None = None
    output: Tokens | None = None
    users: Count | None = None


class Ramp(Workload):
    """Conversations that grow turn by turn to the given lengths."""

    AXES: ClassVar[tuple[str, ...]] = ("conversations", "output")
    kind: Literal["ramp"]
    turns: Annotated[list[Tokens], Field(min_length=1)]
    output: Tokens | None = None
    conversations: Count | None = None


WORKLOADS: dict[str, type[Workload]] = {
    "needle": Needle, "oneshot": Oneshot, "grid": Grid, "sweep": Sweep, "agent": Agent, "ramp": Ramp,
}  # fmt: skip


GATES = ("needle_under_load", "completed", "capacity")
"""Gates that are about no workload of their own; any other gate names a workload or a kind of workload."""


class Repeats(Part):
    """How often a cell is measured, and whether each time is a launch of its own."""

    n: Count
    within: Literal["launch"] | None = None


class Requires(Part):
    """The capacity an experiment needs before it is worth measuring."""

    sequences: Count
    at: Tokens


class Experiment(Part):
    """Stacks x variants x workloads x axes x repeats, with gates and placement wishes."""

    stacks: Annotated[list[str], Field(min_length=1)]
    variants: list[str] | None = None
    workloads: Annotated[list[str | dict[str, Any]], Field(min_length=1)]
    quad: str = "any"
    gates: dict[str, Literal["all"]] = {}
    requires: Requires | None = None
    include: list[dict[str, Any]] = []
    exclude: list[dict[str, Any]] = []
    repeats: Count | Repeats = 1
    on_capacity: Literal["mark", "block"] = "mark"
    preempt: bool = False
    quiet: bool = False
    priority: int = 0


class Serve(Part):
    """A stack that stays up until its entry goes."""

    stack: str
    variant: str | None = None
    quad: str = "any"
    port: Annotated[int, Field(ge=1, le=65535, strict=True)] | None = None


class Policy(Part):
    """Rules that hold for the whole campaign: what may be published, and what a plan may not do.

    `gpu_hours` is the most that one plan may take, `max_stale_cells` how many recorded cells it may measure again.
    """

    gates: Literal["required", "optional"] = "optional"
    moving_tags: Literal["warn", "deny"] = "warn"
    gpu_hours: Annotated[float, Field(ge=0)] | None = None
    relaunch_published: Literal["allow", "deny"] | None = None
    max_stale_cells: Annotated[int, Field(ge=0, strict=True)] | None = None


class Recipe(Part):
    """One campaign: the merged content of all files of the given folders."""

    lcplan: Literal[1]
    engines: dict[Name, EngineDecl] = {}
    defaults: Defaults = Defaults()
    models: dict[Name, Model] = {}
    nodes: dict[Name, NodeDecl] = {}
    stacks: dict[Name, Stack] = {}
    workloads: dict[Name, Any] = {}
    experiments: dict[Name, Experiment] = {}
    serve: dict[Name, Serve] = {}
    policy: Policy = Policy()
    variables: dict[Name, Any] = {}
