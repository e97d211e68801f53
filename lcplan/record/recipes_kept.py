"""Recipe texts kept by hash, so that the file:line of an old run can still be shown: `state/recipes/<sha256>.yaml`."""

from __future__ import annotations

from pathlib import Path

from lcplan.base.canonical import digest_bytes
from lcplan.base.files import write_atomic


def keep(root: Path, text: bytes) -> str:
    """Keep the text of a recipe file and return its sha256."""
    sha256 = digest_bytes(text)
    file = _path(root, sha256)
    if not file.exists():
        write_atomic(file, text, mode=0o444)
    return sha256


def line(root: Path, sha256: str, number: int) -> str | None:
    """Return one line (counted from 1) of a kept recipe, None when the text or the line is not there."""
    if not sha256.isalnum():
        return None
    try:
        lines = _path(root, sha256).read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return lines[number - 1] if 0 < number <= len(lines) else None


def _path(root: Path, sha256: str) -> Path:
    return root / "recipes" / f"{sha256}.yaml"
