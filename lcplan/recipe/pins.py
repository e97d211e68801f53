"""`lcplan.lock.json` beside the recipes: the digest that each image tag had when it was locked.

`{"lcplan_lock": 1, "images": {"vllm/vllm-openai:v0.31.0": "sha256:..."}}`, written by `lcplan lock`. A pinned image is
part of what a launch is, so that a new lock makes records stale as a new tag would.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lcplan.base.diagnostics import Diagnostic, Source, error, warning

NAME = "lcplan.lock.json"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def lock_files(paths: Sequence[Path]) -> dict[str, Path]:
    """Return shown name -> path of the lock files that stand beside recipes."""
    folders = [path if path.is_dir() else path.parent for path in paths]
    found = (folder / NAME for folder in dict.fromkeys(folders))
    return {str(path): path for path in found if path.is_file()}


def pin(data: dict[str, Any], locks: Mapping[str, bytes], problems: list[Diagnostic]) -> None:
    """Give every engine whose image is locked its digest as `pinned`; say which images a lock does not know."""
    known: dict[str, str] = {}
    for shown, raw in locks.items():
        try:
            known |= read_lock(raw)
        except ValueError as problem:
            problems.append(error("bad-lock", f"the lock file can't be read: {problem}",
                                  "remove it and write it again with `lcplan lock`", Source(shown)))  # fmt: skip
            return
    if not locks:
        return
    for name, engine in data["engines"].items():
        image = engine.get("image")
        if image is None or "@" in image:
            continue
        if image in known:
            engine["pinned"] = known[image]
        else:
            problems.append(warning("image-unlocked", f"engine '{name}': the image {image} is not in the lock file",
                                    "`lcplan lock` adds it", Source(next(iter(locks)))))  # fmt: skip


def pinned_image(engine: Mapping[str, Any]) -> str | None:
    """Return an engine's image as it is started: as written, with the locked digest behind it."""
    image: str | None = engine.get("image")
    return f"{image}@{engine['pinned']}" if image and engine.get("pinned") else image


def read_lock(raw: bytes) -> dict[str, str]:
    """Return image -> digest. Raises ValueError with a sentence."""
    held = json.loads(raw)
    if not isinstance(held, dict) or held.get("lcplan_lock") != 1 or not isinstance(held.get("images"), dict):
        raise ValueError('it is no {"lcplan_lock": 1, "images": {...}}')
    for image, digest in held["images"].items():
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise ValueError(f"{image} has no digest sha256:...")
    return dict(held["images"])


def lock_text(images: Mapping[str, str]) -> str:
    """Return the text of a lock file, sorted by image."""
    return json.dumps({"lcplan_lock": 1, "images": dict(sorted(images.items()))}, indent=2) + "\n"
