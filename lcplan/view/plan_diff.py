"""The text of a comparison of two plans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def diff_text(found: Mapping[str, Any]) -> str:
    """Return one line per difference, or a sentence when there is none."""
    lines = [f"+ launch {name}" for name in found["launches"]["added"]]
    lines += [f"- launch {name}" for name in found["launches"]["removed"]]
    for name, fields in found["launches"]["changed"].items():
        lines += [f"~ launch {name}: {field}" for field in fields]
    lines += [f"+ cell {name}" for name in found["cells_added"]]
    lines += [f"- cell {name}" for name in found["cells_removed"]]
    for name, fields in found["cells_changed"].items():
        lines.append(f"~ cell {name}: {'; '.join(fields)}")
    lines += [f"~ serve {field}" for field in found["serves"]]
    lines += [f"  {field}" for field in found["summary"]]
    return "\n".join(lines) or "the plans do the same"
