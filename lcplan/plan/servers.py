"""The servers of a launch: one, or those of the roles of a split layout, each with a command line of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lcplan.base.layout import parse_layout
from lcplan.engine import get as engine_of
from lcplan.engine.base import RUN_ID, ServerSpec
from lcplan.plan.model import Launch, Placement, Server
from lcplan.recipe.expand import resolve_stack
from lcplan.recipe.load import Recipes
from lcplan.recipe.merge import merge
from lcplan.recipe.pins import pinned_image

ROUTER = "router"
_HOST = "127.0.0.1"


def server_spec(recipes: Recipes, stack: Mapping[str, Any], role: str | None = None) -> ServerSpec:
    """Return what a resolved stack, or that of one of its roles, means to its engine. Secrets stand as `$NAME`."""
    data = recipes.data
    engine = data["engines"][stack["engine"]]
    model = data["models"][stack["model"]]
    command = engine.get("command")
    return ServerSpec(
        kind=engine["kind"],
        version=engine.get("version"),
        model_path=model["path"],
        model_context=model.get("context"),
        context=stack.get("context"),
        layout=parse_layout(stack["layout"]),
        args=stack.get("args", {}),
        env={k: v if isinstance(v, str) else f"${v['from_env']}" for k, v in stack.get("env", {}).items()},
        rope_scaling=stack.get("rope_scaling"),
        role=role,
        command=tuple(command) if command else None,
    )


def role_stacks(recipes: Recipes, stack: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the resolved stack of every role of a split layout: the stack with the role above it.

    A role whose engine is of another kind takes none of the stack's args and env, which are those of another program.
    """
    engines = recipes.data["engines"]
    made: dict[str, dict[str, Any]] = {}
    for role in ("prefill", "decode", ROUTER):
        declared = {"layout": "tp1", **({"engine": "vllm-router"} if role == ROUTER else {}),
                    **stack.get("roles", {}).get(role, {})}  # fmt: skip
        foreign = engines[declared.get("engine", stack["engine"])]["kind"] != engines[stack["engine"]]["kind"]
        dropped = ("roles", "args", "env") if foreign else ("roles",)
        made[role] = merge({key: value for key, value in stack.items() if key not in dropped}, declared)
    return made


def role_behaviour(recipes: Recipes, stack: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what decides the behaviour of every role's servers; ports and addresses are none of it."""
    made = {}
    for role, one in role_stacks(recipes, stack).items():
        spec = server_spec(recipes, one, role)
        made[role] = {
            "engine": {"kind": spec.kind, "version": spec.version},
            "image": pinned_image(recipes.data["engines"][one["engine"]]),
            "layout": spec.layout.canonical,
            "quad": one.get("quad"),
            "args": engine_of(spec.kind).identity(spec),
            "env": dict(one.get("env", {})),
        }
    return made


def servers(recipes: Recipes, launch: Launch) -> list[Server]:
    """Return the servers of a placed launch in the order of their start; the last one is the one that is asked.

    Their served name is the hole @RUN_ID@.
    """
    stack = resolve_stack(recipes.data, launch.stack, launch.variant)
    placed = launch.placement
    if placed is None or not placed.roles:
        return [_server(recipes, launch, stack, "", placed.port if placed else 0)]
    stacks = role_stacks(recipes, stack)
    names = sorted((name for name in placed.roles if name != ROUTER), key=lambda name: not name.startswith("prefill"))
    made = [_server(recipes, launch, stacks[_role(name)], name, placed.roles[name].port) for name in names]
    front = merge(stacks[ROUTER], {"args": _addresses(placed)})
    return [*made, _server(recipes, launch, front, ROUTER, placed.roles[ROUTER].port)]


def _server(recipes: Recipes, launch: Launch, stack: Mapping[str, Any], name: str, port: int) -> Server:
    role = _role(name)
    spec = server_spec(recipes, stack, role or None)
    chosen, image = engine_of(spec.kind), pinned_image(recipes.data["engines"][stack["engine"]])
    # The router needs no GPU and is on every machine that has lcplan: without an image it runs as a process.
    runtime = "process" if role == ROUTER and image is None and launch.runtime == "docker" else launch.runtime
    env = {**stack.get("env", {}), **chosen.environment(spec, port=port)}
    return Server(name, spec.kind, runtime, image, chosen.argv(spec, port=port, served_name=RUN_ID), env)


def _addresses(placed: Placement) -> dict[str, list[str]]:
    return {
        role: [f"http://{_HOST}:{one.port}" for name, one in placed.roles.items() if _role(name) == role]
        for role in ("prefill", "decode")
    }


def _role(name: str) -> str:
    return name.split("-")[0]
