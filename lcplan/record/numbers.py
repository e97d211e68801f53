"""Raw numbers of a run: rows of `points.parquet` and `requests.parquet`. pyarrow is imported when they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lcplan.base.diagnostics import Source, fail
from lcplan.record import manifest

POINTS = "points.parquet"


def rows(root: Path, run: str, cell: str = "", name: str = POINTS) -> list[tuple[int, dict[str, Any]]]:
    """Return the rows of a run's parquet file with their numbers (from 0), those of one cell when it is named.

    A run without the file has no rows. Raises LcplanError: `unknown-run`, `parquet-damaged`.
    """
    file = manifest.folder(root, run) / name
    if not file.exists():
        return []
    import pyarrow
    from pyarrow import parquet

    try:
        found = parquet.ParquetFile(file).read().to_pylist()
    except (pyarrow.ArrowException, OSError) as reason:
        raise fail(
            "parquet-damaged", f"{name} of run '{run}' cannot be read: {reason}", source=Source(str(file))
        ) from None
    return [(number, row) for number, row in enumerate(found) if not cell or row.get("cell") == cell]
