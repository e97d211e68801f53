"""The flags that a source declares: `add_argument` calls, vLLM's config classes, SGLang's annotated fields."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from lcplan.engine.catalog_source import UNKNOWN, Hint, Module, Package, last

Keywords = dict[str, Any]
Entry = dict[str, Any]
Row = Callable[[ast.expr], Keywords | None]
_PLAIN = ("str", "int", "float")
_HUMAN = {"human_readable_int": "int(human)", "human_readable_int_or_auto": "int(human|auto)"}


def vllm(package: Package) -> list[Entry]:
    """Return the entries of `vllm serve`: make_arg_parser, FrontendArgs and AsyncEngineArgs."""
    engine = package.module("vllm.engine.arg_utils")
    cli = next((module for module in _modules(package, "FrontendArgs") if "make_arg_parser" in module.names), None)
    if engine is None or cli is None:
        return []
    found = _calls(package, cli, cli.names["make_arg_parser"])
    found += _frontend(package, cli)
    for name in ("EngineArgs", "AsyncEngineArgs"):
        owner = engine.names.get(name)
        for method in owner.body if isinstance(owner, ast.ClassDef) else []:
            if isinstance(method, ast.FunctionDef) and method.name == "add_cli_args":
                found += _calls(package, engine, method)
    return found


def sglang(package: Package) -> list[Entry]:
    """Return the entries of `sglang serve`: annotated fields, then ServerArgs.add_cli_args."""
    found: list[Entry] = []
    for name in sorted(package.files):
        if name.startswith("sglang/srt/arg_groups/fields/") or name == "sglang/srt/server_args.py":
            module = package.module(name.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
            for node in module.tree.body if module else []:
                if module and isinstance(node, ast.ClassDef):
                    found += _annotated(package, module, node)
                    for method in node.body:
                        if isinstance(method, ast.FunctionDef) and method.name == "add_cli_args":
                            found += _calls(package, module, method)
    return found


def router(package: Package) -> list[Entry]:
    """Return the entries of `vllm-router`."""
    module = package.module("vllm_router.router_args")
    owner = module.names.get("RouterArgs") if module else None
    if module is None or not isinstance(owner, ast.ClassDef):
        return []
    methods = [node for node in owner.body if isinstance(node, ast.FunctionDef) and node.name == "add_cli_args"]
    return [entry for method in methods for entry in _calls(package, module, method)]


def _modules(package: Package, name: str) -> Iterator[Module]:
    for file, text in package.files.items():
        if f"class {name}" in text:
            module = package.module(file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
            if module:
                yield module


def _calls(package: Package, module: Module, function: ast.AST) -> list[Entry]:
    """The entries of the add_argument calls in a function, in order, with the keyword tables it builds on the way."""
    tables: dict[str, dict[str, Keywords]] = {}
    single: dict[str, Keywords] = {}  # variables that hold the keywords of one field
    found: list[Entry] = []
    module = module.inside(function)

    def table(node: ast.expr) -> dict[str, Keywords] | None:
        if isinstance(node, ast.Call) and last(node.func) == "get_kwargs" and node.args:
            owner = package.class_of(module, last(node.args[0]))
            return _table(package, *owner) if owner else {}
        return tables.get(last(node))

    def row(node: ast.expr) -> Keywords | None:
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return (table(node.value) or {}).get(str(node.slice.value))
        return single.get(last(node))

    for node in _in_order(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if (known := table(node.value)) is not None:
                tables[name] = known
            elif (words := row(node.value)) is not None:
                single[name] = words
        elif isinstance(node, (ast.Assign, ast.Delete)):
            _alter(package, module, row, node)
        elif isinstance(node, ast.Call) and last(node.func) == "add_argument":
            names = [name for arg in node.args if (name := _text(arg))]
            keywords: Keywords = {}
            for word in node.keywords:
                keywords.update(_keyword(package, module, word.arg, word.value, row))
            if names:
                found.append(_entry(names, keywords))
    return found


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield child
        yield from _in_order(child)


def _text(node: ast.AST) -> str:
    """An option string; what an f-string fills in is left out (the router's optional prefix)."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    parts = node.values if isinstance(node, ast.JoinedStr) else []
    return "".join(str(part.value) for part in parts if isinstance(part, ast.Constant))


def _keyword(package: Package, module: Module, name: str | None, node: ast.expr, row: Row) -> Keywords:
    """One keyword of add_argument, or the keywords that `**` unpacks."""
    if name is None:
        merged = dict(row(node) or {})
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                word = str(key.value) if isinstance(key, ast.Constant) else None
                if key is None or word is not None:
                    merged.update(_keyword(package, module, word, value, row))
        return merged
    if name == "type":
        return _typed(package, module, node)
    if name == "action":
        return {"action": node.value if isinstance(node, ast.Constant) else last(node)}
    if name in ("help", "metavar", "dest"):
        return {}
    if name == "default" and last(node) == "SUPPRESS":
        return {name: "==SUPPRESS=="}
    return {name: package.constant(module, node)}


def _typed(package: Package, module: Module, node: ast.expr) -> Keywords:
    """What a `type=` callable makes of a text."""
    source = ast.unparse(node)
    if isinstance(node, ast.Call) and node.args:
        inner = _typed(package, module, node.args[0])
        return {**inner, "nullable": last(node.func) == "optional_type"}
    if source in _HUMAN or source in _PLAIN:
        return {"type": _HUMAN.get(source, source), "nullable": False}
    found = package.resolve(module, source) if isinstance(node, ast.Name) else None
    body = ast.unparse(found[1]) if found and isinstance(found[1], ast.FunctionDef) else source
    if "json.loads" in body:
        return {"type": "json-list" if "list" in source else "json", "nullable": False}
    if ".split(','" in body:
        return {"type": "comma list of str", "nullable": False}
    note = {"note": "value lower-cased and '-'->'_' before choice check"} if ".lower()" in body else {}
    return {"type": "str", "nullable": False, **note}


def _table(package: Package, module: Module, node: ast.ClassDef) -> dict[str, Keywords]:
    """vLLM's get_kwargs: the keywords of every field of a config class."""
    fields = package.fields(module, node)
    return {name: _field(package, where, name, item, node.name) for name, (where, item) in fields.items()}


def _field(package: Package, module: Module, name: str, item: ast.AnnAssign, group: str) -> Keywords:
    """One field as vllm/engine/arg_utils.py, _compute_kwargs, decides it, in its order."""
    hints = package.hints(module, item.annotation)
    kinds = {hint.name for hint in hints}
    out: Keywords = {"default": package.constant(module, item.value), "group": group}
    by_name = {hint.name: hint for hint in reversed(hints)}
    if "dataclass" in kinds:
        out |= {"type": "json", "json_fields": by_name["dataclass"].fields}
    elif kinds == {"bool", "str", "none"}:
        out |= {"type": "str", "nargs": "?", "const": True}
    elif "bool" in kinds:
        out["action"] = "BooleanOptionalAction"
    elif "literal" in kinds:
        out |= _choices(by_name["literal"], "suggested" if "str" in kinds else "choices")
    elif "list" in kinds:
        items = by_name["list"].items
        element = next((hint for hint in items if hint.name == "literal"), None)
        plain = items[0].name if len(items) == 1 and items[0].name in _PLAIN else "str"
        out |= {"type": plain, "nargs": "+"} | (_choices(element, "choices") if element else {})
    elif "int" in kinds:
        out["type"] = "int(human|auto)" if name == "max_model_len" else _human(package, name)
    elif "float" in kinds:
        out["type"] = "float"
    elif "dict" in kinds:
        out["type"] = "str|json-object" if kinds & {"str", "other"} else "json"
    else:
        out["type"] = "str"
    if "none" in kinds and "bool" not in kinds:
        out["nullable"] = True
        if out.get("choices"):
            out["choices"] = [*out["choices"], None]
    return out


def _choices(hint: Hint, key: str) -> Keywords:
    values = sorted(hint.values, key=str)
    plain = [value for value in values if value is not None]
    return {"type": type(plain[0]).__name__ if plain else "str", key: values}


def _human(package: Package, name: str) -> str:
    text = package.files.get("vllm/engine/arg_utils.py", "")
    block = text.partition("human_readable_int_args = {")[2].partition("}")[0]
    return "int(human)" if f'"{name}"' in block else "int"


def _frontend(package: Package, module: Module) -> list[Entry]:
    """vLLM's FrontendArgs: one flag for every field, after what _customize_cli_kwargs changes."""
    owner = package.class_of(module, "FrontendArgs")
    if owner is None:
        return []
    table = _table(package, *owner)

    def row(node: ast.expr) -> Keywords | None:
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return table.get(str(node.slice.value))
        return None

    for base in [*owner[1].bases, None]:
        node = owner[1] if base is None else (package.class_of(module, last(base)) or (module, None))[1]
        for method in node.body if node else []:
            if isinstance(method, ast.FunctionDef) and method.name in ("_customize_cli_kwargs", "add_cli_args"):
                for statement in _in_order(method):
                    if isinstance(statement, (ast.Assign, ast.Delete)):
                        _alter(package, owner[0], row, statement)
    return [_entry([f"--{name.replace('_', '-')}"], {**words, "group": "Frontend"}) for name, words in table.items()]


def _alter(package: Package, module: Module, row: Row, node: ast.Assign | ast.Delete) -> None:
    """`kwargs["field"]["key"] = value` and `del kwargs["field"]["key"]`."""
    for target in node.targets:
        if not isinstance(target, ast.Subscript) or not isinstance(target.slice, ast.Constant):
            continue
        words, key = row(target.value), str(target.slice.value)
        if words is not None and isinstance(node, ast.Delete):
            words.pop(key, None)
        elif words is not None and isinstance(node, ast.Assign):
            words.update(_keyword(package, module, key, node.value, row))


def _annotated(package: Package, module: Module, node: ast.ClassDef) -> list[Entry]:
    """SGLang's fields `name: A[type, Arg(...)]` as sglang/srt/arg_groups/arg_utils.py turns them into arguments."""
    found: list[Entry] = []
    for item in node.body:
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        annotation = item.annotation
        if not isinstance(annotation, ast.Subscript) or last(annotation.value) not in ("A", "Annotated"):
            continue
        parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else []
        call = next((part for part in parts[1:] if isinstance(part, ast.Call) and last(part.func) == "Arg"), None)
        if call is None and not any(isinstance(part, (ast.Constant, ast.JoinedStr, ast.BinOp)) for part in parts[1:]):
            continue
        nodes = {word.arg: word.value for word in call.keywords if word.arg} if call else {}
        if package.constant(module, nodes.get("no_cli")) is True:
            continue
        words: Keywords = {"default": None if item.value is None else package.constant(module, item.value)}
        words["group"] = node.name.lower()
        hints = [hint for hint in package.hints(module, parts[0]) if hint.name != "none"]
        kind = hints[0] if len(hints) == 1 else Hint("other")
        if kind.name == "literal":
            words |= _choices(kind, "choices")
        elif kind.name == "list" and "type_parser" not in nodes:
            words |= {
                "type": kind.items[0].name if kind.items and kind.items[0].name in _PLAIN else "str",
                "nargs": "+",
            }
        elif kind.name == "bool":
            words["action"] = "store_true"
        else:
            words["type"] = kind.name if kind.name in _PLAIN else "str"
        for key, value in nodes.items():
            known = {"type_parser": "type", "action_kwargs": None}.get(key, key)
            if known is None or known in ("type", "choices", "nargs", "action", "const"):
                read = _keyword(package, module, known, value, lambda _: None)
                words.update({word: made for word, made in read.items() if made is not UNKNOWN or word not in words})
        name = package.constant(module, nodes.get("cli_name")) or f"--{item.target.id.replace('_', '-')}"
        aliases = package.constant(module, nodes.get("aliases")) or []
        found.append(_entry([name, *aliases], words))
    return found


def _entry(names: Iterable[str], words: Keywords) -> Entry:
    """One entry of a table from argparse's own keywords."""
    spelt = list(names)
    main = next((name for name in spelt if name.startswith("--")), spelt[0])
    action, nargs = words.get("action"), words.get("nargs")
    kind, shown = "value", words.get("type", "str")
    extra: Entry = {}
    if not main.startswith("-"):
        kind, extra["positional"] = "positional", True
    elif action in ("store_true", "store_false") or (action and "StoreTrue" in action):
        kind, shown = "switch", "bool"
    elif action == "BooleanOptionalAction":
        kind, shown, extra["negative"] = "bool-optional", "bool", [f"--no-{main[2:]}"]
    elif action == "append" or nargs in ("+", "*") or (isinstance(nargs, int) and nargs > 1):
        kind = "list"
    elif "json" in shown:
        kind = "json"
    if kind in ("positional", "list", "value") and nargs is not None:
        extra["nargs"] = str(nargs)
    if action and kind not in ("switch", "bool-optional"):
        extra["action"] = "_AppendAction" if action == "append" else action
    if words.get("const") not in (None, UNKNOWN) and nargs == "?":
        extra["bare_flag_value"] = words["const"]
    for key in ("suggested", "note"):
        if words.get(key):
            extra[key] = words[key]
    if words.get("json_fields"):
        extra["json_fields"] = [{"name": name} for name in words["json_fields"]]
    choices, default = words.get("choices"), words.get("default", False if kind == "switch" else None)
    unread = [key for key in ("choices", "default") if words.get(key) is UNKNOWN]
    if unread:
        extra["unread"] = unread
    return {
        "flag": main,
        "aliases": [name for name in spelt if name != main],
        "kind": kind,
        "type": shown,
        "nullable": bool(words.get("nullable")),
        "default": None if default is UNKNOWN else default,
        "choices": list(choices) if choices not in (None, UNKNOWN) else None,
        "group": words.get("group", "options"),
        **extra,
    }
