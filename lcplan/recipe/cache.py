"""Checked recipes kept by content hash, so that a plan of unchanged files parses nothing again.

A cache only: any trouble with it means the slow path. Kept under $XDG_CACHE_HOME/lcplan, at most 64 entries.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from lcplan import __version__
from lcplan.base.canonical import digest
from lcplan.base.diagnostics import Diagnostic, Source
from lcplan.base.files import write_atomic
from lcplan.recipe.load import Recipes
from lcplan.recipe.yamltree import Number

_KEEP = 64


def key(blobs: dict[str, str], variables: dict[str, str], roots: tuple[str, ...]) -> str:
    """Return the name of a cache entry: file names and hashes, variables, and the code that would check them."""
    return digest([__version__, _code_stamp(), blobs, variables, roots])


def read(name: str) -> Recipes | None:
    """Return a kept recipe, or None."""
    try:
        kept = json.loads((_folder() / f"{name}.json").read_bytes())
        files = kept["files"]
        places = {tuple(path): Source(files[at[0]], at[1], at[2]) for path, at in kept["places"]}
        diagnostics = [
            Diagnostic(d["severity"], d["code"], d["message"], d["hint"], Source(d["file"], d["line"], d["column"]))
            for d in kept["diagnostics"]
        ]
        return Recipes(
            _revive(kept["data"]), kept["parsed"], kept["blobs"], kept["variables"], places, diagnostics,
            tuple(kept["roots"]),
        )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, IndexError, RuntimeError):
        return None


def write(name: str, recipes: Recipes) -> None:
    """Keep a recipe; failures are ignored, since nothing depends on it."""
    files = sorted({place.file for place in recipes.places.values()})
    number = {file: i for i, file in enumerate(files)}
    kept = {
        "data": _plain(recipes.data),
        "parsed": recipes.parsed,
        "blobs": recipes.blobs,
        "variables": recipes.variables,
        "places": [[list(p), [number[at.file], at.line, at.column]] for p, at in recipes.places.items()],
        "diagnostics": [d.as_json() for d in recipes.diagnostics],
        "files": files,
        "roots": list(recipes.roots),
    }
    try:
        folder = _folder()
        write_atomic(folder / f"{name}.json", json.dumps(kept, separators=(",", ":")), mode=0o600)
        entries = sorted(folder.glob("*.json"), key=lambda p: p.stat().st_mtime)
        for old in entries[:-_KEEP]:
            old.unlink(missing_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        return


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "lcplan" / "recipes"


def _code_stamp() -> list[int]:
    """Return something that changes when the checking code does (a developer's checkout keeps one version)."""
    folder = Path(__file__).parent
    return [
        (folder / f"{name}.py").stat().st_mtime_ns
        for name in ("schema", "normal", "nodes", "load", "substitute", "pins", "yamltree", "merge")
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, Number):
        return {"\u0000number": value.text}
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value


def _revive(value: Any) -> Any:
    if isinstance(value, dict):
        if len(value) == 1 and "\u0000number" in value:
            return Number(value["\u0000number"])
        return {key: _revive(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_revive(one) for one in value]
    return value
