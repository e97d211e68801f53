"""What `lcplan import` shows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lcplan.base.diagnostics import Diagnostic
from lcplan.engine.importer import Imported

if TYPE_CHECKING:
    from lcplan.audit.adopt import Adopted


def import_json(imported: Imported, file: str) -> str:
    """Return the import as JSON, one key per field."""
    return json.dumps(imported.as_json(file), indent=2, ensure_ascii=False)


def import_notes(diagnostics: Iterable[Diagnostic], unresolved: Iterable[str]) -> str:
    """Return the findings and what could not be resolved, one per line, for standard error."""
    lines = [str(diagnostic) for diagnostic in diagnostics]
    names = ", ".join(unresolved)
    if names:
        lines.append(f"unresolved: {names}")
    return "\n".join(lines)


def adopted_text(runs: Sequence[Adopted], state: Path) -> str:
    """Return what became of the runs of an older campaign, and what is not known of each."""
    lines = []
    for one in runs:
        what = "adopted" if one.sealed_now else "recorded already"
        lines += [f"{what}: {one.run}, {one.cells} cells", *(f"  unknown: {name}" for name in one.unknown)]
    new = sum(one.sealed_now for one in runs)
    lines.append(f"{new} of {len(runs)} runs adopted into {state}; `lcplan audit why RUN --state {state}` shows one")
    return "\n".join(lines)
