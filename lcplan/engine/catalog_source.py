"""Python source read without running it: names followed over imports, constants and type annotations understood."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

UNKNOWN: Any = type("Unknown", (), {"__repr__": lambda self: "UNKNOWN", "__bool__": lambda self: False})()
_OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Pow: operator.pow,
}  # fmt: skip
_MADE: Mapping[str, Callable[[Any], Any]] = {"int": int, "str": str, "sorted": sorted}
_DEFS = (ast.ClassDef, ast.FunctionDef)


@dataclass(frozen=True)
class Hint:
    """One member of a type: `name` is str, int, float, bool, none, literal, list, dict, dataclass or other.

    `values` are a literal's, `items` the members of a list's element type, `fields` the field names of a dataclass.
    """

    name: str
    values: tuple[Any, ...] = ()
    items: tuple[Hint, ...] = ()
    fields: tuple[str, ...] = ()


@dataclass
class Module:
    """One module of a package, parsed."""

    name: str
    tree: ast.Module
    package: str

    @cached_property
    def names(self) -> dict[str, ast.AST]:
        """Every name bound at the top of the module, also inside `if` and `try`."""
        return dict(_bindings(self.tree.body))

    def inside(self, function: ast.AST) -> Module:
        """Return this module as seen from a function: its local names come first."""
        scope = Module(self.name, self.tree, self.package)
        scope.names = {**self.names, **dict(_bindings(getattr(function, "body", [])))}
        return scope


@dataclass
class Package:
    """The sources of a package: file name (`vllm/config/model.py`) -> text."""

    files: Mapping[str, str]
    _modules: dict[str, Module | None] = field(default_factory=dict)

    def module(self, name: str) -> Module | None:
        """Return a module by its dotted name."""
        if name not in self._modules:
            path = name.replace(".", "/")
            file = next((f for f in (f"{path}.py", f"{path}/__init__.py") if f in self.files), None)
            package = name if file and file.endswith("__init__.py") else name.rpartition(".")[0]
            self._modules[name] = Module(name, ast.parse(self.files[file]), package) if file else None
        return self._modules[name]

    def resolve(self, module: Module, name: str, depth: int = 0) -> tuple[Module, ast.AST] | None:
        """Return where a name is defined, following imports inside the package."""
        node = module.names.get(name)
        if not isinstance(node, ast.ImportFrom):
            return (module, node) if node is not None else None
        source = node.module or ""
        if node.level:
            parts = module.package.split(".")
            base = parts[: len(parts) - node.level + 1]
            source = ".".join([*base, source] if source else base)
        original = next((alias.name for alias in node.names if (alias.asname or alias.name) == name), name)
        target = self.module(source)
        return self.resolve(target, original, depth + 1) if target and depth < 10 else None

    def class_of(self, module: Module, name: str) -> tuple[Module, ast.ClassDef] | None:
        """Return the definition of a class."""
        found = self.resolve(module, name)
        return (found[0], found[1]) if found and isinstance(found[1], ast.ClassDef) else None

    def fields(self, module: Module, node: ast.ClassDef) -> dict[str, tuple[Module, ast.AnnAssign]]:
        """Return the annotated fields of a class, those of its bases first."""
        found: dict[str, tuple[Module, ast.AnnAssign]] = {}
        for base in node.bases:
            if isinstance(base, ast.Name) and (parent := self.class_of(module, base.id)):
                found.update(self.fields(*parent))
        for item in node.body:
            if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
                continue
            if "ClassVar" not in ast.unparse(item.annotation):
                found[item.target.id] = (module, item)
        return found

    def constant(self, module: Module, node: ast.AST | None, depth: int = 0) -> Any:
        """Return the value of an expression of constants, else UNKNOWN."""
        if node is None or depth > 12:
            return UNKNOWN

        def inner(part: ast.AST) -> Any:
            return self.constant(module, part, depth + 1)

        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError):
            pass
        if isinstance(node, ast.Name):
            found = self.resolve(module, node.id)
            value = getattr(found[1], "value", None) if found else None
            return self.constant(found[0], value, depth + 1) if found and value is not None else UNKNOWN
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = self.class_of(module, node.value.id)
            item = self.fields(*owner).get(node.attr) if owner else None
            return self.constant(item[0], item[1].value, depth + 1) if item else UNKNOWN
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            left, right = inner(node.left), inner(node.right)
            return UNKNOWN if UNKNOWN in (left, right) else _OPERATORS[type(node.op)](left, right)
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return self._sequence(module, node, depth)
        if isinstance(node, ast.Lambda):
            return inner(node.body)
        return self._call(module, node, depth) if isinstance(node, ast.Call) else UNKNOWN

    def hints(self, module: Module, node: ast.AST | None, depth: int = 0) -> tuple[Hint, ...]:
        """Return the members of a type annotation; Optional, Union, Annotated and aliases are unfolded."""
        if depth > 12 or node is None:
            return (Hint("other"),)

        def inner(*parts: ast.AST) -> tuple[Hint, ...]:
            members = [hint for part in parts for hint in self.hints(module, part, depth + 1)]
            return tuple(dict.fromkeys(members))

        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                return inner(ast.parse(node.value, mode="eval").body)
            return (Hint("none"),) if node.value is None else (Hint("other"),)
        if isinstance(node, ast.BinOp):
            return inner(node.left, node.right)
        if isinstance(node, ast.Subscript):
            name = last(node.value)
            args = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            if name == "Optional":
                return tuple(dict.fromkeys([*inner(node.slice), Hint("none")]))
            if name == "Union":
                return inner(*args)
            if name in ("Annotated", "A", "SkipValidation", "InstanceOf"):
                return inner(args[0])
            if name == "Literal":
                return (Hint("literal", values=tuple(self._literal(module, args))),)
            if name.lower() in ("list", "set", "tuple", "sequence"):
                return (Hint("list", items=inner(args[0])),)
            return (Hint("dict" if name.lower() == "dict" else "other"),)
        name = last(node)
        if name.lower() in ("list", "set", "tuple", "dict") or name in ("str", "int", "float", "bool"):
            return (Hint({"set": "list", "tuple": "list"}.get(name.lower(), name.lower())),)
        found = self.resolve(module, name)
        if found is None or isinstance(found[1], ast.FunctionDef):
            return (Hint("other"),)
        where, target = found
        if isinstance(target, ast.ClassDef):
            marks = {last(d.func if isinstance(d, ast.Call) else d) for d in target.decorator_list}
            if marks & {"config", "dataclass"}:
                return (Hint("dataclass", fields=tuple(self.fields(where, target))),)
            return (Hint("dict" if any(_base(base) == "dict" for base in target.bases) else "other"),)
        return self.hints(where, getattr(target, "value", None), depth + 1)

    def _sequence(self, module: Module, node: ast.List | ast.Tuple | ast.Set, depth: int) -> Any:
        values: list[Any] = []
        for item in node.elts:
            starred = isinstance(item, ast.Starred)
            value = self.constant(module, item.value if isinstance(item, ast.Starred) else item, depth + 1)
            if value is UNKNOWN:
                return UNKNOWN
            values += list(value) if starred else [value]
        return values

    def _call(self, module: Module, node: ast.Call, depth: int) -> Any:
        name = last(node.func)
        keywords = {word.arg: word.value for word in node.keywords}
        if name in ("field", "Field"):
            factory = keywords.get("default_factory")
            if factory is not None and last(factory) in ("list", "dict", "set"):
                return {"list": [], "dict": {}, "set": []}[last(factory)]
            if factory is not None:
                return self.constant(module, factory, depth + 1)
            return self.constant(module, keywords.get("default", node.args[0] if node.args else None), depth + 1)
        if not node.args:
            found = self.resolve(module, name) if name else None
            body = found[1].body if found and isinstance(found[1], ast.FunctionDef) else []
            if not found or not body or not isinstance(body[-1], ast.Return):
                return UNKNOWN
            return self.constant(found[0].inside(found[1]), body[-1].value, depth + 1)
        if name == "get_args":
            return [value for hint in self.hints(module, node.args[0]) for value in hint.values] or UNKNOWN
        value = self.constant(module, node.args[0], depth + 1)
        if value is UNKNOWN or name not in ("list", "sorted", "tuple", "set", "int", "str"):
            return UNKNOWN
        made: Callable[[Any], Any] = _MADE.get(name, list)
        return made(value)

    def _literal(self, module: Module, args: list[ast.expr]) -> Iterator[Any]:
        for arg in args:
            if isinstance(arg, ast.Constant):
                yield arg.value
            else:  # a literal of literals
                yield from (value for hint in self.hints(module, arg) for value in hint.values)


def _bindings(body: list[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    for node in body:
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, node) for alias in node.names)
        elif isinstance(node, _DEFS):
            yield node.name, node
        elif isinstance(node, ast.Assign):
            yield from ((target.id, node) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node
        elif isinstance(node, ast.If):
            # The last one wins: behind `if TYPE_CHECKING` that is what runs.
            yield from _bindings([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            yield from _bindings([*node.body, *node.orelse])


def _base(node: ast.expr) -> str:
    return last(node.value if isinstance(node, ast.Subscript) else node)


def last(node: ast.AST) -> str:
    """Return the last part of a dotted name, "" for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
