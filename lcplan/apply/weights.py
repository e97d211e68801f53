"""Full hashes of a model's weights, for `apply --hash-weights`: kept by path, size and time, since they take minutes.

The cache lies under $XDG_CACHE_HOME/lcplan/weights; any trouble with it means hashing again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lcplan.base.canonical import digest
from lcplan.base.files import write_atomic

_BLOCK = 8 * 1024 * 1024
_AT_ONCE = 4


class Cancelled(Exception):
    """The caller gave up while the weights were hashed."""


def shard_hashes(folder: Path, cancelled: Callable[[], bool]) -> dict[str, str]:
    """Return the sha256 of every shard (`*.safetensors`) of a model's folder, {} when there are none.

    Raises Cancelled as soon as `cancelled` says so, OSError for a shard that can't be read.
    """
    shards = sorted(folder.glob("*.safetensors"))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        hashes = pool.map(lambda shard: _known(shard, cancelled), shards)
        return {shard.name: found for shard, found in zip(shards, hashes, strict=True)}


def _known(shard: Path, cancelled: Callable[[], bool]) -> str:
    seen = shard.stat()
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    kept = base / "lcplan" / "weights" / digest([str(shard.resolve()), seen.st_size, seen.st_mtime_ns])
    try:
        return kept.read_text()
    except OSError:
        found = _hash(shard, cancelled)
    with contextlib.suppress(OSError):
        write_atomic(kept, found)
    return found


def _hash(shard: Path, cancelled: Callable[[], bool]) -> str:
    made = hashlib.sha256()
    with shard.open("rb") as file:
        while block := file.read(_BLOCK):
            if cancelled():
                raise Cancelled
            made.update(block)
    return made.hexdigest()
