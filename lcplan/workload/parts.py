"""The raw numbers of a run on disk: one pair of parquet files a cell while it runs, merged when the run is sealed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lcplan.base.files import sync_folder
from lcplan.workload.exchange import Record
from lcplan.workload.job import Cell, Job

if TYPE_CHECKING:
    import pyarrow as pa

_PARTS = "parts"
_ATTEMPTS = "attempts"
_KINDS = ("requests", "points")
_CELL = {
    "run": "string",
    "cell": "string",
    "fingerprint": "string",
    "repeat": "int64",
    "attempt": "int64",
    "simulated": "bool",
}
_REQUEST = {
    "request": "int64",
    "user": "int64",
    "turn": "int64",
    "depth": "double",
    "salt": "string",
    "prompt_planned": "int64",
    "new_tokens": "int64",
    "prompt_tokens": "int64",
    "cached_tokens": "int64",
    "output_planned": "int64",
    "output_tokens": "int64",
    "scheduled_ns": "int64",
    "sent_ns": "int64",
    "first_ns": "int64",
    "last_ns": "int64",
    "chunk_ns": "list",
    "http_status": "int64",
    "finish": "string",
    "error": "string",
}
_POINT = {
    "workload": "string",
    "turn": "int64",
    "depth": "double",
    "users": "int64",
    "prompt_tokens": "double",
    "new_tokens": "double",
    "output_tokens": "double",
    "sent": "int64",
    "completed": "int64",
    "ttft_s": "double",
    "ttft_min_s": "double",
    "ttft_max_s": "double",
    "tpot_ms": "double",
    "user_tokens_per_s": "double",
    "e2e_s": "double",
    "prefill_tokens_per_s": "double",
    "output_tokens_per_s": "double",
    "total_tokens_per_s": "double",
    "hit_rate_percent": "double",
    "kv_usage_percent": "double",
    "needle_ok": "bool",
    "queued": "int64",
    "status": "string",
    "reason": "string",
}


def write(job: Job, cell: Cell, records: Sequence[Record], points: Sequence[Mapping[str, Any]]) -> None:
    """Write a cell's requests and points to `parts/`, durably; times count from the first one sent. Raises OSError."""
    facts = {"run": job.run, "cell": cell.name, "fingerprint": cell.fingerprint, "repeat": cell.repeat}
    facts |= {"attempt": cell.attempt, "simulated": job.simulated or any(r.simulated for r in records)}
    zero = min((r.scheduled for r in records), default=0)
    requests = [facts | _request(record, zero) for record in records]
    tables = {
        "requests": _table(requests, _CELL | _REQUEST),
        "points": _table([facts | dict(p) for p in points], _CELL | _POINT),
    }
    _write_tables(job.folder / _PARTS, {f"{cell.name}.{kind}.parquet": table for kind, table in tables.items()})


def next_attempt(job: Job, cell: Cell) -> str:
    """Return the name of this attempt at a cell, unlike that of any earlier one in the same run. Raises OSError.

    A measurement that a crash cut short has left its prompts in the engine's cache: the next one must send others.
    """
    file = job.folder / _PARTS / _ATTEMPTS
    file.parent.mkdir(parents=True, exist_ok=True)
    # Not made durable: a crash of the machine empties the engine's cache as well.
    with file.open("a+") as log:
        log.seek(0)
        begun = log.read().splitlines().count(cell.name)
        log.write(f"{cell.name}\n")
    return f"{job.attempt}.{cell.attempt}.{begun}" if begun else f"{job.attempt}.{cell.attempt}"


def append_needles(job: Job, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows to the run's `niah.log`, one JSON object a line, durably. Raises OSError."""
    job.folder.mkdir(parents=True, exist_ok=True)
    with (job.folder / "niah.log").open("a", encoding="utf-8") as log:
        for row in rows:
            log.write(json.dumps(row, ensure_ascii=False) + "\n")
        log.flush()
        os.fsync(log.fileno())


def merge_parts(folder: Path) -> None:
    """Merge the parts of a run into `requests.parquet` and `points.parquet` and remove them; may be called again.

    Does nothing when there are no parts. Raises OSError.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts, merged = folder / _PARTS, folder / f".{_PARTS}.merged"
    if parts.is_dir():
        for kind in _KINDS:
            files = sorted(parts.glob(f"*.{kind}.parquet"))
            if files:
                whole = pa.concat_tables([pq.read_table(file) for file in files])
                _write_tables(folder, {f"{kind}.parquet": whole})
        shutil.rmtree(merged, ignore_errors=True)
        parts.rename(merged)  # at once: a crash before this merges again, one after it loses nothing
        sync_folder(folder)
    shutil.rmtree(merged, ignore_errors=True)


def _request(record: Record, zero: int) -> dict[str, Any]:
    request = record.request
    return {
        "request": request.index,
        "user": request.user,
        "turn": request.turn,
        "depth": request.depth,
        "salt": request.salt,
        "prompt_planned": request.prompt_tokens,
        "new_tokens": request.new_tokens,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "output_planned": request.output_tokens,
        "output_tokens": record.output_tokens,
        "scheduled_ns": record.scheduled - zero,
        "sent_ns": record.sent - zero,
        "first_ns": None if record.first is None else record.first - zero,
        "last_ns": None if record.last is None else record.last - zero,
        "chunk_ns": [at - zero for at in record.chunks],
        "http_status": record.status,
        "finish": record.finish,
        "error": record.error,
    }


def _table(rows: Sequence[Mapping[str, Any]], types: Mapping[str, str]) -> pa.Table:
    import pyarrow as pa

    kinds = {
        "int64": pa.int64(),
        "double": pa.float64(),
        "string": pa.string(),
        "bool": pa.bool_(),
        "list": pa.list_(pa.int64()),
    }
    schema = pa.schema([pa.field(name, kinds[kind]) for name, kind in types.items()])
    return pa.Table.from_pylist([{name: row.get(name) for name in types} for row in rows], schema=schema)


def _write_tables(folder: Path, tables: Mapping[str, pa.Table]) -> None:
    """Write tables to files of a folder, each whole or not at all; all are durable when this returns."""
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        temporary = folder / f".{name}"
        with temporary.open("wb") as out:
            pq.write_table(table, out, compression="zstd")
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(folder / name)
    sync_folder(folder)
