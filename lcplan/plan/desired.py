"""Recipes to launches and cells: which servers must be started, and what is measured on each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from lcplan.base.canonical import digest
from lcplan.base.diagnostics import Diagnostic, Source, error, fail
from lcplan.base.layout import Layout, parse_layout
from lcplan.engine import get as engine_of
from lcplan.engine.base import ServerSpec
from lcplan.plan.model import FINGERPRINT_VERSION, RUNTIMES, WORKLOAD_KINDS, Cell, Launch
from lcplan.plan.servers import ROUTER, role_behaviour, role_stacks, server_spec
from lcplan.recipe.expand import Wish, resolve_stack, wishes
from lcplan.recipe.load import Recipes
from lcplan.recipe.pins import pinned_image

_READY_TIMEOUT_S = 3600


def desired(recipes: Recipes, runtime: str | None, problems: list[Diagnostic]) -> tuple[list[Launch], list[Cell]]:
    """Return launches and cells in declared order. Errors are appended to `problems`.

    Cells share a launch when all that decides their engine's behaviour is equal; a repeat is a launch of its own unless
    it is declared `within: launch`. Equal cells are one cell, listed with all their experiments. `runtime` overrides
    the runtime of every launch.
    """
    launches: dict[tuple[str, int], Launch] = {}
    cells: dict[str, Cell] = {}
    names: dict[tuple[str, str], Cell] = {}
    sources: dict[tuple[str, int], str] = {}
    taken: set[str] = set()
    for wish in wishes(recipes, problems):
        settings = wish.settings
        for item in {item for _, item in wish.points}:
            key = (wish.experiment, item)
            if key not in sources:
                sources[key] = str(recipes.place("experiments", wish.experiment, "workloads", item))
        for repeat in range(1, wish.repeats + 1):
            number = 1 if wish.within_launch else repeat
            launch = _launch(recipes, wish, number, runtime, launches, taken)
            launch.quiet |= bool(settings.get("quiet"))
            launch.preempt |= bool(settings.get("preempt"))
            launch.priority = max(launch.priority, settings.get("priority", 0))
            # A second time on the same server tells less than one on a server of its own: it is another cell.
            again = "w" if wish.within_launch and repeat > 1 else ""
            head = f"{FINGERPRINT_VERSION}:{launch.digest}:{repeat}{again}:"
            for point, item in wish.points:
                fingerprint = hashlib.sha256((head + point.digest).encode()).hexdigest()
                seen = cells.get(fingerprint)
                if seen is not None:
                    if wish.experiment not in seen.experiments:
                        seen.experiments.append(wish.experiment)
                    continue
                name = point.name if repeat == 1 else f"{point.name}.r{repeat}"
                cell = Cell(
                    name, fingerprint, launch.id, [wish.experiment], wish.stack, wish.variant, point.workload,
                    point.kind, point.axes, point.definition, repeat, point.length, point.users,
                    sources[wish.experiment, item],
                    blocks=settings.get("on_capacity") == "block",
                )  # fmt: skip
                twin = names.setdefault((launch.id, name), cell)
                if twin is not cell:
                    problems.append(_clash(cell, twin, launch))
                    continue
                cells[fingerprint] = cell
                launch.cells.append(cell)
    for launch in launches.values():
        _block(launch)
    return list(launches.values()), list(cells.values())


def server_launch(recipes: Recipes, stack: str, variant: str | None, runtime: str | None) -> Launch:
    """Return a launch of a stack variant without cells, as a serve entry starts it."""
    made = _launch(recipes, Wish("", stack, variant, [], None, 1, False), 1, runtime, {}, set())
    _block(made)
    return made


def _launch(
    recipes: Recipes, wish: Wish, repeat: int, runtime: str | None, launches: dict[tuple[str, int], Launch],
    taken: set[str],
) -> Launch:  # fmt: skip
    data = recipes.data
    stack = resolve_stack(data, wish.stack, wish.variant)
    spec = server_spec(recipes, stack)
    engine, model = data["engines"][stack["engine"]], data["models"][stack["model"]]
    behaviour = _behaviour(recipes, stack, spec, wish.pin)
    key = (digest(behaviour), repeat)
    if key in launches:
        return launches[key]
    layout, chosen = spec.layout, engine_of(spec.kind)
    gpus, engines = _size(layout, stack)
    counting = server_spec(recipes, role_stacks(recipes, stack)["decode"]) if layout.split else spec
    cap, cap_source = chosen.sequence_cap(counting, _gpu_memory(data))
    made = Launch(
        id=_identifier(wish, repeat, taken),
        stack=wish.stack,
        variant=wish.variant,
        repeat=repeat,
        engine=stack["engine"],
        kind=spec.kind,
        version=engine.get("version"),
        image=pinned_image(engine),
        model=stack["model"],
        model_path=model["path"],
        layout=layout.text,
        gpus=gpus,
        engines=engines,
        context=spec.context or spec.model_context,
        runtime=runtime or stack.get("runtime") or engine.get("runtime") or _node_runtime(data)
        or ("docker" if engine.get("image") else "process"),
        behaviour=behaviour,
        digest=key[0],
        pin=wish.pin,
        env=dict(stack.get("env", {})),
        docker=dict(stack.get("docker", {})),
        ready_timeout_s=stack.get("ready_timeout_s", _READY_TIMEOUT_S),
        label=chosen.label(spec, model.get("moe")),
        source=str(recipes.place("stacks", wish.stack)),
        cap=cap,
        cap_source=cap_source,
    )  # fmt: skip
    launches[key] = made
    return made


def _behaviour(recipes: Recipes, stack: Mapping[str, Any], spec: ServerSpec, pin: str | None) -> dict[str, Any]:
    """Return the declared things that decide what a launch measures; a change of any makes its records stale."""
    data = recipes.data
    made: dict[str, Any] = {
        "engine": {"kind": spec.kind, "version": spec.version},
        "image": pinned_image(data["engines"][stack["engine"]]),
        "model": {"path": spec.model_path, "revision": data["models"][stack["model"]].get("revision")},
        "layout": spec.layout.canonical,
        "args": engine_of(spec.kind).identity(spec),
        "env": dict(stack.get("env", {})),
        "quad": pin,
    }
    if spec.layout.split:
        made |= {"args": {}, "roles": role_behaviour(recipes, stack)}
    return made


def _size(layout: Layout, stack: Mapping[str, Any]) -> tuple[int, int]:
    """Return GPUs and engine ranks of a launch."""
    if not layout.split:
        return layout.gpus, layout.engines
    roles = {name: parse_layout(stack.get("roles", {}).get(name, {}).get("layout", "tp1"))
             for name in ("prefill", "decode")}  # fmt: skip
    gpus = roles["prefill"].gpus * layout.prefill + roles["decode"].gpus * layout.decode
    return gpus, roles["decode"].engines * layout.decode


def _identifier(wish: Wish, repeat: int, taken: set[str]) -> str:
    """Return the id of a launch, and note it as taken."""
    base = wish.stack + (f"+{wish.variant}" if wish.variant else "") + (f"@{wish.pin}" if wish.pin else "")
    base += f".r{repeat}" if repeat > 1 else ""
    name, n = base, 2
    while name in taken:
        name, n = f"{base}#{n}", n + 1
    taken.add(name)
    return name


def _gpu_memory(data: Mapping[str, Any]) -> float | None:
    """Return the memory of one GPU in GiB, of the first node."""
    for node in data["nodes"].values():
        return float(node["gpu"]["memory"])
    return None


def _node_runtime(data: Mapping[str, Any]) -> str | None:
    for node in data["nodes"].values():
        if node.get("runtime"):
            return str(node["runtime"])
    return None


def _block(launch: Launch) -> None:
    """Say of a launch and its cells what this version can't do yet."""
    if launch.runtime not in RUNTIMES:
        launch.blocked = f"runtime {launch.runtime} is not in this version"
    elif (roles := launch.behaviour.get("roles")) and (wrong := _unsplit(launch, roles)):
        launch.blocked = wrong
    for cell in launch.cells:
        reason = launch.blocked or ("" if cell.kind in WORKLOAD_KINDS else f"{cell.kind} is not in this version")
        if reason:
            cell.action, cell.reason = "!", f"blocked: {reason}"


def _unsplit(launch: Launch, roles: Mapping[str, Any]) -> str:
    """Return why the servers of a split layout can't be started, "" when they can."""
    wanted = {"prefill": "vllm", "decode": "vllm", ROUTER: "vllm-router"}
    for role, kind in wanted.items():
        if (found := roles[role]["engine"]["kind"]) != kind:
            return f"a split layout whose {role} runs on {found} is not in this version, only {kind}"
    if launch.runtime == "docker" and launch.docker.get("network") != "host":
        return "the servers of a split layout find each other on the host's network: `docker: {network: host}`"
    return ""


def _clash(cell: Cell, twin: Cell, launch: Launch) -> Diagnostic:
    return error(
        "cell-name-clash",
        f"two different cells of launch {launch.id} are named {cell.name}",
        "give one of the workload items a `name:`",
        _source(cell.source),
        _source(twin.source),
    )


def _source(text: str) -> Source:
    parts = text.rsplit(":", 2)
    if len(parts) == 3 and parts[1].isdigit() and parts[2].isdigit():
        return Source(parts[0], int(parts[1]), int(parts[2]))
    return Source(text)


def require_node(recipes: Recipes) -> None:
    """Raise LcplanError when no node is declared: nothing can be placed."""
    if not recipes.data["nodes"]:
        raise fail("no-node", "no node is declared", "write one, or `lcplan topology detect --write node.yaml`")
