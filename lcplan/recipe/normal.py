"""A merged tree to checked, normalised data: schema, references, workload items resolved, secrets refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from lcplan.base.diagnostics import Diagnostic, Source, error, has_errors, nearest, warning
from lcplan.recipe.merge import merge
from lcplan.recipe.nodes import check_nodes
from lcplan.recipe.schema import GATES, WORKLOADS, Recipe, Workload, check_name, parse_rate
from lcplan.recipe.yamltree import Key, Tree

_SECRET_WORDS = {"TOKEN", "KEY", "SECRET", "PASSWORD", "CREDENTIALS"}
_SECRET_FLAGS = {"api-key", "admin-api-key", "hf-token", "ssl-keyfile-password"}
_EXPERIMENT_AXES = ("stack", "variant", "workload")
_BUILT_IN_ENGINES = {"vllm-router": {"kind": "vllm-router"}}
KINDS = ("vllm", "sglang", "openai", "vllm-router")


def normalise(tree: Tree, problems: list[Diagnostic]) -> dict[str, Any]:
    """Return plain data by section; errors and warnings are appended to `problems`."""
    recipe = _validate(Recipe, tree.data, (), tree, problems)
    if recipe is None:
        return {}
    data: dict[str, Any] = recipe.model_dump(exclude_unset=True)
    data.pop("variables", None)
    data["engines"] = {**_BUILT_IN_ENGINES, **data.get("engines", {})}
    for section in ("models", "nodes", "stacks", "workloads", "experiments", "serve", "defaults", "policy"):
        data.setdefault(section, {})
    _engines(data, tree, problems)
    data["workloads"] = {
        name: resolved
        for name, declared in data["workloads"].items()
        if (resolved := _workload(name, declared, ("workloads", name), tree, problems)) is not None
    }
    problems += check_nodes(data["nodes"], tree)
    _stacks(data, tree, problems)
    _secrets(data, tree, problems)
    if not has_errors(problems):
        _experiments(data, tree, problems)
        _serves(data, tree, problems)
    return data


def _engines(data: dict[str, Any], tree: Tree, problems: list[Diagnostic]) -> None:
    for name, engine in data["engines"].items():
        kind = engine.setdefault("kind", name)
        if kind not in KINDS:
            hint = nearest(kind, KINDS) or f"add `kind:`, one of {', '.join(KINDS)}"
            problems.append(error("unknown-engine", f"engine '{name}' has no known kind", hint,
                                  tree.key_place(("engines", name))))  # fmt: skip
        if kind == "openai" and not engine.get("command"):
            problems.append(error("missing-key", f"engine '{name}' of kind openai needs `command:`",
                                  "a list such as [server, --port, '{port}', --model, '{model}']",
                                  tree.key_place(("engines", name))))  # fmt: skip


def _stacks(data: dict[str, Any], tree: Tree, problems: list[Diagnostic]) -> None:
    quads = {quad for node in data["nodes"].values() for quad in node["quads"]}
    for name, stack in data["stacks"].items():
        path: Key = ("stacks", name)
        _refer(data["models"], stack["model"], "model", (*path, "model"), tree, problems)
        _refer(data["engines"], stack["engine"], "engine", (*path, "engine"), tree, problems)
        for variant, overlay in stack.get("variants", {}).items():
            here = (*path, "variants", variant)
            _needed(overlay, here, tree, problems)
            if overlay.get("engine"):
                _refer(data["engines"], overlay["engine"], "engine", (*here, "engine"), tree, problems)
        for role, content in stack.get("roles", {}).items():
            here = (*path, "roles", role)
            _needed(content, here, tree, problems)
            if content.get("engine"):
                _refer(data["engines"], content["engine"], "engine", (*here, "engine"), tree, problems)
            if content.get("quad") and quads:
                _refer(quads, content["quad"], "quad", (*here, "quad"), tree, problems)


def _needed(overlay: Mapping[str, Any], path: Key, tree: Tree, problems: list[Diagnostic]) -> None:
    for key in ("engine", "layout"):
        if key in overlay and overlay[key] is None:
            problems.append(error("missing-key", f"null would remove `{key}:`, which every server needs",
                                  "leave it out", tree.place((*path, key))))  # fmt: skip


def _experiments(data: dict[str, Any], tree: Tree, problems: list[Diagnostic]) -> None:
    quads = {quad for node in data["nodes"].values() for quad in node["quads"]}
    for name, experiment in data["experiments"].items():
        path: Key = ("experiments", name)
        for i, stack in enumerate(experiment["stacks"]):
            _refer(data["stacks"], stack, "stack", (*path, "stacks", i), tree, problems)
        for i, variant in enumerate(experiment.get("variants") or []):
            for stack in experiment["stacks"]:
                known = data["stacks"].get(stack, {}).get("variants", {})
                if stack in data["stacks"] and variant not in known:
                    hint = nearest(variant, known) or f"variants of {stack}: {', '.join(known) or 'none'}"
                    problems.append(error("unresolved", f"stack '{stack}' has no variant '{variant}'", hint,
                                          tree.place((*path, "variants", i))))  # fmt: skip
        if experiment.get("quad", "any") != "any" and quads:
            _refer({*quads, "any"}, experiment["quad"], "quad", (*path, "quad"), tree, problems)
        resolved = []
        for i, item in enumerate(experiment["workloads"]):
            made = _item(data, item, (*path, "workloads", i), tree, problems)
            if made is not None:
                resolved.append(made)
        experiment["workloads"] = resolved
        _gates(experiment, path, tree, problems)
        axes = {axis for item in resolved for axis in [*item["axes"], *_point_axes(item)]}
        for key in ("include", "exclude"):
            for i, rule in enumerate(experiment.get(key, [])):
                _rule(rule, axes, experiment, (*path, key, i), tree, problems)


def _gates(experiment: dict[str, Any], path: Key, tree: Tree, problems: list[Diagnostic]) -> None:
    known = (*GATES, *WORKLOADS, *(item["name"] for item in experiment["workloads"]))
    for gate in experiment.get("gates", {}):
        if gate not in known:
            hint = nearest(gate, known) or "gates: " + ", ".join(dict.fromkeys(known))
            problems.append(error("unknown-gate", f"there is no gate '{gate}', nor a workload of that name here",
                                  hint, tree.key_place((*path, "gates", gate))))  # fmt: skip


def _point_axes(item: Mapping[str, Any]) -> tuple[str, ...]:
    return ("prompt", "users", "rate") if item["kind"] == "grid" else ()


def _rule(
    rule: dict[str, Any], axes: set[str], experiment: dict[str, Any], path: Key, tree: Tree, problems: list[Diagnostic]
) -> None:
    known = {*_EXPERIMENT_AXES, *axes}
    if not rule:
        problems.append(error("empty-rule", "an empty rule selects everything", "name an axis", tree.place(path)))
    for axis, value in list(rule.items()):
        place = tree.key_place((*path, axis))
        if axis not in known:
            hint = nearest(axis, known) or "axes here: " + ", ".join(sorted(known))
            problems.append(error("unknown-axis", f"'{axis}' is no axis of this experiment", hint, place))
            continue
        wanted = value if isinstance(value, list) else [value]
        names = {
            "stack": experiment["stacks"],
            "variant": [*(experiment.get("variants") or []), None],
            "workload": [w["name"] for w in experiment["workloads"]],
        }.get(axis)
        if names is None:
            rule[axis] = [(_rate if axis == "rate" else _size)(one, place, problems) for one in wanted]
            continue
        rule[axis] = wanted
        for one in wanted:
            if one not in names:
                hint = nearest(str(one), [str(n) for n in names])
                problems.append(error("unresolved", f"this experiment has no {axis} '{one}'", hint, place))


def _item(
    data: dict[str, Any], item: str | dict[str, Any], path: Key, tree: Tree, problems: list[Diagnostic]
) -> dict[str, Any] | None:
    """Return a workload as an experiment uses it: the named one with what `use:` replaces."""
    if isinstance(item, str):
        if not _refer(data["workloads"], item, "workload", path, tree, problems):
            return None
        return {**data["workloads"][item], "name": item}
    used = item.get("use")
    if used is None:
        problems.append(error("missing-key", "an override needs `use:`", "{use: <workload>, ...}", tree.place(path)))
        return None
    if not isinstance(used, str) or not _refer(
        data["workloads"], str(used), "workload", (*path, "use"), tree, problems
    ):
        return None
    name = item.get("name", used)
    try:
        check_name(name)
    except ValueError as problem:
        problems.append(error("bad-name", str(problem), "", tree.place((*path, "name"))))
        return None
    changes = {key: value for key, value in item.items() if key not in ("use", "name")}
    original = tree.data["workloads"][used]
    made = _workload(used, merge(_without(original, changes), changes), path, tree, problems)
    return {**made, "name": name} if made is not None else None


def _without(original: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a workload without what an override says in the other way: an axis as a key, or a key as an axis."""
    axes = changes.get("axes")
    below = {key: value for key, value in original.items() if not isinstance(axes, dict) or key not in axes}
    if "axes" in below:
        below["axes"] = {axis: values for axis, values in below["axes"].items() if axis not in changes}
    return below


def _workload(name: str, declared: Any, path: Key, tree: Tree, problems: list[Diagnostic]) -> dict[str, Any] | None:
    """Return a validated workload with axis values as integers, or None when it is wrong."""
    kind = declared.get("kind") if isinstance(declared, dict) else None
    if not isinstance(kind, str) or kind not in WORKLOADS:
        hint = nearest(str(kind), WORKLOADS) if kind else ""
        what = f"unknown kind '{kind}'" if kind else "has no `kind:`"
        problems.append(error("unknown-workload", f"workload '{name}': {what}",
                              hint or "kinds: " + ", ".join(WORKLOADS), tree.place((*path, "kind"))))  # fmt: skip
        return None
    model = _validate(WORKLOADS[kind], declared, path, tree, problems)
    if model is None:
        return None
    made: dict[str, Any] = model.model_dump(exclude_none=True)
    _axes(made, model, path, tree, problems)
    return made


def _axes(made: dict[str, Any], model: Workload, path: Key, tree: Tree, problems: list[Diagnostic]) -> None:
    for axis, values in made["axes"].items():
        here = (*path, "axes", axis)
        if axis not in model.AXES:
            hint = nearest(axis, model.AXES) or f"axes of a {made['kind']}: {', '.join(model.AXES)}"
            problems.append(error("unknown-axis", f"a {made['kind']} has no axis '{axis}'", hint, tree.key_place(here)))
        if axis in made:
            problems.append(warning("axis-over-key", f"'{axis}' is given as a key and as an axis: the axis counts",
                                    "keep one", tree.key_place(here)))  # fmt: skip
        if any(axis in point for point in made.get("points", ())):
            problems.append(error("duplicate-axis", f"the points give '{axis}' already", "keep one", tree.place(here)))
        if not values:
            problems.append(error("empty-axis", f"axis '{axis}' has no values", "give at least one", tree.place(here)))
        value_of = _rate if axis == "rate" else _size
        made["axes"][axis] = [value_of(v, tree.place((*here, i)), problems) for i, v in enumerate(values)]
        if len(set(made["axes"][axis])) != len(values):
            problems.append(error("duplicate-axis", f"axis '{axis}' has a value twice", "keep one", tree.place(here)))
    needed = {
        "needle": ("prompt",),
        "oneshot": ("prompt", "output"),
        "grid": ("output",),
        "sweep": ("prompt", "output"),
        "agent": ("history", "new", "output", "users"),
        "ramp": ("conversations", "output"),
    }.get(made["kind"], ())
    for field in needed:
        points = made.get("points") or [{}]
        if field not in made and field not in made["axes"] and not all(field in point for point in points):
            problems.append(error("missing-key", f"a {made['kind']} needs `{field}:`, as a key or as an axis", "",
                                  tree.place(path)))  # fmt: skip
    if made["kind"] == "grid" and not made["points"] and "prompt" not in made["axes"]:
        problems.append(error("missing-key", "a grid needs `points:` or the axes prompt and users", "",
                              tree.place(path)))  # fmt: skip
    if made["kind"] in ("grid", "sweep"):
        _load(made, path, tree, problems)


def _load(made: dict[str, Any], path: Key, tree: Tree, problems: list[Diagnostic]) -> None:
    """Check that every point has either users or a rate, and says how many requests it sends."""
    points: list[dict[str, Any]] = made.get("points") or [{}]
    loads = {key for key in ("users", "rate") if key in made or key in made["axes"] or any(key in p for p in points)}
    bare = any(not ({*point, *made["axes"], *made} & {"users", "rate"}) for point in points)
    if len(loads) != 1 or bare:
        what = "users and a rate" if len(loads) == 2 else "neither users nor a rate"
        problems.append(error("missing-key", f"the points of a {made['kind']} have {what}",
                              "give `users:` or `rate:`, as a key or as an axis", tree.place(path)))  # fmt: skip
        return
    wanted = "total" if "rate" in loads else "per_user" if made["kind"] == "sweep" else ""
    if wanted and not made.get("requests", {}).get(wanted):
        problems.append(error("missing-key", f"a {made['kind']} with {loads.pop()} needs `requests: {{{wanted}: ...}}`",
                              "", tree.place(path)))  # fmt: skip


def _rate(value: Any, place: Source, problems: list[Diagnostic]) -> float:
    try:
        return parse_rate(value)
    except ValueError as problem:
        problems.append(error("wrong-type", str(problem), "", place))
        return 1


def _size(value: Any, place: Source, problems: list[Diagnostic]) -> int:
    from lcplan.base.units import parse_tokens

    try:
        size = parse_tokens(value)
    except ValueError as problem:
        problems.append(error("wrong-type", str(problem), "", place))
        return 0
    if size < 1:
        problems.append(error("wrong-type", "a value of an axis must be at least 1", "", place))
    return size


def _serves(data: dict[str, Any], tree: Tree, problems: list[Diagnostic]) -> None:
    quads = {quad for node in data["nodes"].values() for quad in node["quads"]}
    for name, entry in data["serve"].items():
        path: Key = ("serve", name)
        if not _refer(data["stacks"], entry["stack"], "stack", (*path, "stack"), tree, problems):
            continue
        if entry.get("variant"):
            variants = data["stacks"][entry["stack"]].get("variants", {})
            _refer(variants, entry["variant"], "variant", (*path, "variant"), tree, problems)
        if entry.get("quad", "any") != "any" and quads:
            _refer({*quads, "any"}, entry["quad"], "quad", (*path, "quad"), tree, problems)


def _secrets(data: dict[str, Any], tree: Tree, problems: list[Diagnostic]) -> None:
    """Refuse literal secrets; their values are never repeated in a message."""
    for path, holder in _holders(data):
        for name, value in (holder.get("env") or {}).items():
            literal = isinstance(value, str) and value and not value.replace(".", "", 1).isdigit()
            if literal and value.lower() not in ("true", "false") and name.rsplit("_", 1)[-1].upper() in _SECRET_WORDS:
                hint = f"write {name}: {{from_env: {name}}}; the value is read when the server starts"
                place = tree.place((*path, "env", name))
                problems.append(error("literal-secret", f"'{name}' looks like a secret written out", hint, place))
        for flag, value in (holder.get("args") or {}).items():
            bare = str(flag).lstrip("-").replace("_", "-")
            if bare in _SECRET_FLAGS and value is not None and not isinstance(value, (bool, int, float)):
                hint = (
                    "a command line is visible to everybody; give it by env, for example VLLM_API_KEY: {from_env: ...}"
                )
                problems.append(error("literal-secret", f"'{bare}' would put a secret on the command line", hint,
                                      tree.place((*path, "args", flag))))  # fmt: skip


def _holders(data: dict[str, Any]) -> list[tuple[Key, dict[str, Any]]]:
    found: list[tuple[Key, dict[str, Any]]] = [(("defaults",), data["defaults"])]
    for name, stack in data["stacks"].items():
        found.append((("stacks", name), stack))
        for part in ("variants", "roles"):
            found += [(("stacks", name, part, key), one) for key, one in stack.get(part, {}).items()]
    return found


def _refer(known: Any, name: str, what: str, path: Key, tree: Tree, problems: list[Diagnostic]) -> bool:
    if name in known:
        return True
    hint = nearest(name, known) or f"declared: {', '.join(sorted(known)) or 'none'}"
    problems.append(error("unresolved", f"there is no {what} '{name}'", hint, tree.place(path)))
    return False


def _validate(model: type[Any], value: Any, path: Key, tree: Tree, problems: list[Diagnostic]) -> Any:
    try:
        return model.model_validate(value)
    except ValidationError as found:
        # A misspelt key is why another one is missing: it is told first.
        for one in sorted(found.errors(), key=lambda e: e["type"] == "missing"):
            problems.append(_diagnostic(one, value, path, model, tree))
        return None


def _diagnostic(one: Any, value: Any, path: Key, model: type[BaseModel], tree: Tree) -> Diagnostic:
    kind = one["type"]
    loc = _real_path(one["loc"], value, kind)
    where: Key = (*path, *loc)
    shown = ".".join(str(part) for part in where) or "the recipe"
    if kind == "extra_forbidden":
        known = _fields(model, one["loc"][:-1])
        hint = nearest(str(loc[-1]), known) or "known keys: " + ", ".join(known)
        return error("unknown-key", f"unknown key '{loc[-1]}' in {'.'.join(str(p) for p in where[:-1]) or 'the file'}",
                     hint, tree.key_place(where))  # fmt: skip
    if kind == "missing":
        return error("missing-key", f"'{shown}' is missing", "", tree.key_place(where[:-1]))
    message = one["msg"].removeprefix("Value error, ")
    if kind == "value_error":
        code = "bad-name" if "no safe name" in message else "wrong-type"
        place = tree.key_place(where) if code == "bad-name" else tree.place(where)
        return error(code, f"{shown}: {message}", "", place)
    hint = "quote it" if kind == "string_type" and isinstance(one["input"], (int, float)) else ""
    return error("wrong-type", f"{shown}: {message[:1].lower()}{message[1:]}", hint, tree.place(where))


def _real_path(loc: tuple[Any, ...], value: Any, kind: str) -> Key:
    """Return the part of a pydantic location that exists in the data (it also names union members and '[key]')."""
    made: list[str | int] = []
    for part in loc:
        if (isinstance(value, dict) and part in value) or (
            isinstance(value, list) and isinstance(part, int) and part < len(value)
        ):
            made.append(part)
            value = value[part]
        elif kind == "missing" and part is loc[-1]:
            made.append(part)
    return tuple(made)


def _fields(model: type[BaseModel], loc: tuple[Any, ...]) -> list[str]:
    """Return the keys that are known at a location of the schema."""
    current: type[BaseModel] = model
    for part in loc:
        if part in current.model_fields:
            annotation = current.model_fields[part].annotation
            models = [a for a in _flatten(annotation) if isinstance(a, type) and issubclass(a, BaseModel)]
            current = models[0] if models else current
    return sorted(current.model_fields)


def _flatten(annotation: Any) -> list[Any]:
    from typing import get_args

    found = [annotation]
    for part in get_args(annotation):
        found += _flatten(part)
    return found
