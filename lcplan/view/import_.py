"""What `lcplan import` shows."""

from __future__ import annotations

import json
from collections.abc import Iterable

from lcplan.base.diagnostics import Diagnostic
from lcplan.engine.importer import Imported


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
