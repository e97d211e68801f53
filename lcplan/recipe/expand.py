"""Matrices to points: what each experiment asks to be measured, before any machine is thought of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from lcplan.base.canonical import digest
from lcplan.base.diagnostics import Diagnostic, error
from lcplan.base.units import show_tokens
from lcplan.recipe.load import Recipes


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a workload: its cell name without repeat, its axes, its full definition and the hash of that.

    `length` is the most tokens that one sequence of the point holds, prompt and output together.
    """

    workload: str
    kind: str
    name: str
    axes: Mapping[str, float]
    definition: Mapping[str, Any]
    digest: str
    length: int
    users: int


@dataclass(slots=True)
class Wish:
    """Points that one experiment wants measured on one stack variant."""

    experiment: str
    stack: str
    variant: str | None
    points: list[tuple[Point, int]]
    pin: str | None
    repeats: int
    within_launch: bool
    settings: Mapping[str, Any] = field(default_factory=dict)


def wishes(recipes: Recipes, problems: list[Diagnostic]) -> Iterator[Wish]:
    """Yield what the experiments want, in declared order; a point carries the index of its workload item.

    A point that does not fit the context of its stack is an error, once per stack and workload.
    """
    data = recipes.data
    known: dict[str, list[Point]] = {}
    for name, experiment in data["experiments"].items():
        repeats = experiment.get("repeats", 1)
        n, within = (repeats, False) if isinstance(repeats, int) else (repeats["n"], repeats.get("within") == "launch")
        items = [(i, _points(item, known)) for i, item in enumerate(experiment["workloads"])]
        for stack in experiment["stacks"]:
            for variant in experiment.get("variants") or [None]:
                chosen: list[tuple[Point, int]] = []
                context = _context(data, stack, variant)
                for i, points in items:
                    kept = [p for p in points if _selected(p, stack, variant, experiment)]
                    long = [p for p in kept if context is not None and p.length > context]
                    if long:
                        problems.append(_too_long(recipes, name, i, stack, variant, long, context or 0))
                    chosen += [(p, i) for p in kept]
                pin = experiment.get("quad", "any")
                yield Wish(name, stack, variant, chosen, None if pin == "any" else pin, n, within, experiment)


def resolve_stack(data: Mapping[str, Any], stack: str, variant: str | None) -> dict[str, Any]:
    """Return a stack with the defaults below it and its variant above it."""
    from lcplan.recipe.merge import merge

    below = {key: data["defaults"][key] for key in ("docker", "env", "args", "runtime", "ready_timeout_s")
             if key in data["defaults"]}  # fmt: skip
    declared = data["stacks"][stack]
    made = merge(below, declared)
    if variant is not None:
        made = merge(made, declared.get("variants", {})[variant])
    made.pop("variants", None)
    return made


def _context(data: Mapping[str, Any], stack: str, variant: str | None) -> int | None:
    made = resolve_stack(data, stack, variant)
    context: int | None = made.get("context") or data["models"][made["model"]].get("context")
    return context


def _points(item: Mapping[str, Any], known: dict[str, list[Point]]) -> list[Point]:
    """Return the points of a resolved workload item; equal items are expanded once."""
    key = digest(item)
    if key not in known:
        known[key] = list(_expand(item))
    return known[key]


def _expand(item: Mapping[str, Any]) -> Iterator[Point]:
    kind, name = item["kind"], item["name"]
    base = {k: v for k, v in item.items() if k not in ("name", "axes", "points")}
    axes: Mapping[str, list[float]] = item["axes"]
    rows: list[tuple[dict[str, float], dict[str, Any], str | None]] = [({}, {}, None)]
    if kind == "grid" and item["points"]:
        rows = [({k: p[k] for k in ("prompt", "users", "rate") if k in p}, {k: p[k] for k in ("output",) if k in p},
                 p.get("name")) for p in item["points"]]  # fmt: skip
    names = sorted(axes)
    for fixed, extra, own_name in rows:
        for values in product(*(axes[a] for a in names)):
            point = {**fixed, **dict(zip(names, values, strict=True))}
            definition = {**base, **extra, **point}
            suffix = "".join(f".{axis}={point[axis]}" for axis in sorted(point))
            shown = f"{name}.{own_name}" if own_name else name + suffix
            yield Point(
                name,
                kind,
                shown,
                point,
                definition,
                digest(definition),
                _length(kind, definition),
                _users(kind, definition),
            )


def _length(kind: str, d: Mapping[str, Any]) -> int:
    if kind == "agent":
        return int(d["history"] + d["turns"] * (d["new"] + d["output"]))
    if kind == "ramp":
        return int(max(d["turns"]) + d["output"])
    return int(d["prompt"] + d["output"])


def _users(kind: str, d: Mapping[str, Any]) -> int:
    return int(d.get("conversations" if kind == "ramp" else "users", 1))


def _selected(point: Point, stack: str, variant: str | None, experiment: Mapping[str, Any]) -> bool:
    facts = {"stack": stack, "variant": variant, "workload": point.workload, **point.axes}

    def hit(rules: Iterable[Mapping[str, Any]]) -> bool:
        return any(all(facts.get(axis) in wanted for axis, wanted in rule.items()) for rule in rules)

    include = experiment.get("include", [])
    return (not include or hit(include)) and not hit(experiment.get("exclude", []))


def _too_long(
    recipes: Recipes, name: str, item: int, stack: str, variant: str | None, long: list[Point], context: int
) -> Diagnostic:
    worst = max(long, key=lambda p: p.length)
    more = f" (and {len(long) - 1} more points)" if len(long) > 1 else ""
    shown = f"{stack}, variant {variant}" if variant else stack
    return error(
        "context-exceeded",
        f"{worst.name}{more} needs {worst.length:,} tokens, prompt and output together, but the context of {shown} is "
        f"{context:,} ({show_tokens(context)})",
        f"shorten the prompt, or write exclude: [{{stack: {stack}, workload: {worst.workload}}}] in '{name}'",
        recipes.place("experiments", name, "workloads", item),
        recipes.place("stacks", stack, "context"),
    )
