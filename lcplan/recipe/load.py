"""Folders of YAML files to one checked recipe: merge, variables, schema, references."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lcplan.base.canonical import digest, digest_bytes
from lcplan.base.diagnostics import Diagnostic, LcplanError, Source, error, fail, has_errors, nearest
from lcplan.recipe.yamltree import Key, Tree, parse_tree

SECTIONS = (
    "lcplan", "engines", "defaults", "models", "nodes", "stacks", "workloads", "experiments", "serve", "policy",
    "variables",
)  # fmt: skip
_NAMED = ("engines", "models", "nodes", "stacks", "workloads", "experiments", "serve", "variables")


@dataclass
class Recipes:
    """A checked recipe: plain `data` by section (tokens as integers, layouts as text, workload items resolved).

    `parsed` is the hash of the content (comments, order of files and of keys do not count), `blobs` the sha256 of each
    file, `variables` the values that were used.
    """

    data: dict[str, Any]
    parsed: str
    blobs: dict[str, str]
    variables: dict[str, Any]
    places: dict[Key, Source] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    roots: tuple[str, ...] = ()

    def place(self, *path: str | int) -> Source:
        """Return where something is declared, or the nearest enclosing thing that has a place."""
        key: Key = path
        while key and key not in self.places:
            key = key[:-1]
        return self.places.get(key, Source(self.roots[0] if self.roots else "recipes"))


def load(paths: Sequence[Path], variables: Mapping[str, str] | None = None) -> Recipes:
    """Return the checked recipe of files and folders (`*.yaml`, `*.yml` directly inside a folder).

    Raises LcplanError with every error found: bad YAML, unknown keys, wrong types, duplicates, unresolved names.
    """
    from lcplan.recipe import cache, pins

    files = recipe_files(paths)
    raws = {shown: path.read_bytes() for shown, path in files.items()}
    locks = {shown: path.read_bytes() for shown, path in pins.lock_files(paths).items()}
    blobs = {shown: digest_bytes(raw) for shown, raw in {**raws, **locks}.items()}
    roots = tuple(str(p) for p in paths)
    key = cache.key(blobs, dict(variables or {}), roots)
    kept = cache.read(key)
    if kept is not None:
        return kept
    recipes = check(raws, blobs, dict(variables or {}), roots, locks)
    cache.write(key, recipes)
    return recipes


def recipe_files(paths: Sequence[Path]) -> dict[str, Path]:
    """Return shown name -> path of every recipe file. Raises LcplanError for missing paths and empty folders."""
    found: dict[str, Path] = {}
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if _is_recipe(p))
            if not inside:
                raise fail(
                    "empty-folder", "the folder holds no recipe (*.yaml)", "try `lcplan init`", Source(str(path))
                )
            found.update({str(p): p for p in inside})
        elif path.is_file():
            found[str(path)] = path
        else:
            raise fail("no-such-path", "there is no such file or folder", "give a folder of recipes", Source(str(path)))
    for shown, path in found.items():
        if not _readable(path):
            raise fail("unreadable-file", "cannot read the file", "check its permissions", Source(shown))
    return found


def check(
    raws: Mapping[str, bytes], blobs: dict[str, str], given: dict[str, str], roots: tuple[str, ...],
    locks: Mapping[str, bytes],
) -> Recipes:  # fmt: skip
    """Return the checked recipe of file contents; the slow path of `load`. Raises LcplanError."""
    from lcplan.recipe import normal, pins, substitute

    problems: list[Diagnostic] = []
    trees: list[Tree] = []
    for shown, raw in raws.items():
        try:
            trees.append(parse_tree(raw, shown))
        except LcplanError as found:
            problems.extend(found.diagnostics)
    merged = merge_files(trees, problems)
    if problems:
        raise LcplanError(*problems)
    if not any(merged.data.get(section) for section in SECTIONS if section != "lcplan"):
        raise fail("empty-recipe", "nothing is declared", "declare stacks and experiments", Source(", ".join(roots)))
    values = substitute.variables(merged, given, problems)
    merged.data = substitute.apply(merged, values, problems)
    data = normal.normalise(merged, problems)
    if not has_errors(problems):
        pins.pin(data, locks, problems)
    if has_errors(problems):
        raise LcplanError(*problems)
    places = {**merged.values, **merged.keys}
    return Recipes(data, digest(data), blobs, values, places, problems, roots)


def merge_files(trees: Iterable[Tree], problems: list[Diagnostic]) -> Tree:
    """Return one tree of all files: sections merge by name, a name declared twice is an error naming both places."""
    merged = Tree("recipes", {})
    for tree in sorted(trees, key=lambda t: t.file):
        if not isinstance(tree.data, dict):
            what = "is empty" if tree.data is None else "is no mapping of sections"
            problems.append(error("not-a-recipe", f"the file {what}", "start it with `lcplan: 1`", Source(tree.file)))
            continue
        if "lcplan" not in tree.data:
            hint = nearest("lcplan", tree.data) or "start the file with `lcplan: 1`, or move it out of the folder"
            problems.append(error("not-a-recipe", "the file does not say `lcplan: 1`", hint, tree.place(())))
            continue
        for section, content in tree.data.items():
            _merge_section(merged, tree, section, content, problems)
        merged.values = {**tree.values, **merged.values}
        merged.keys = {**tree.keys, **merged.keys}
    return merged


def _merge_section(merged: Tree, tree: Tree, section: str, content: Any, problems: list[Diagnostic]) -> None:
    if section not in SECTIONS:
        hint = nearest(section, SECTIONS) or "sections: " + ", ".join(SECTIONS[1:])
        place = tree.key_place((section,))
        problems.append(error("unknown-key", f"unknown section '{section}'", hint, place))
        return
    if section == "lcplan":
        merged.data.setdefault(section, content)
        return
    if content is None:
        content = {}
    if not isinstance(content, dict):
        problems.append(error("wrong-type", f"section '{section}' is no mapping", "write `name: ...` below it",
                              tree.place((section,))))  # fmt: skip
        return
    target = merged.data.setdefault(section, {})
    if section in _NAMED:
        for name, entry in content.items():
            if name in target:
                first = merged.key_place((section, name))
                problems.append(
                    error("duplicate-name", f"{section[:-1] if section != 'serve' else 'serve entry'} '{name}' is "
                          "declared twice", "rename one or remove it", tree.key_place((section, name)), first)
                )  # fmt: skip
                continue
            target[name] = entry
    else:
        _merge_leaves(merged, tree, target, content, (section,), problems)


def _merge_leaves(
    merged: Tree, tree: Tree, target: dict[str, Any], content: dict[str, Any], path: Key, problems: list[Diagnostic]
) -> None:
    for key, value in content.items():
        here = (*path, key)
        if key in target and isinstance(target[key], dict) and isinstance(value, dict):
            _merge_leaves(merged, tree, target[key], value, here, problems)
        elif key in target:
            first = merged.key_place(here)
            dotted = ".".join(str(k) for k in here)
            problems.append(
                error("duplicate-name", f"'{dotted}' is given twice", "keep one", tree.key_place(here), first)
            )
        else:
            target[key] = value


def _is_recipe(path: Path) -> bool:
    # Hidden ones are locks and copies of editors and file systems, which `*.yaml` in a shell leaves out too.
    return path.suffix in (".yaml", ".yml") and not path.name.startswith(".") and path.is_file()


def _readable(path: Path) -> bool:
    import os

    return os.access(path, os.R_OK)
