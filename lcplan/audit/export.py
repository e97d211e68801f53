"""All recorded numbers for other tools: a long table, in-toto statements, an RO-Crate."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lcplan.audit.gates import standing
from lcplan.audit.listing import Listed, list_runs
from lcplan.audit.refs import Records
from lcplan.base.canonical import digest_bytes, dumps
from lcplan.base.diagnostics import fail
from lcplan.base.files import write_atomic
from lcplan.record import manifest
from lcplan.record.index import opened

COLUMNS = (
    "run", "cell", "workload", "kind", "experiments", "stack", "variant", "layout", "quad", "context", "engine",
    "engine_version", "image_digest", "prompt", "users", "repeat", "metric", "value", "unit", "n", "min", "max", "p90",
    "status", "reason", "simulated", "invalid", "provisional", "retracted", "standing", "limited", "fingerprint",
    "manifest_sha256",
)  # fmt: skip
_WHOLE = ("context", "prompt", "users", "repeat", "n")
_FLAGS = ("simulated", "invalid", "provisional", "retracted", "limited")
_NUMBERS = ("value", "min", "max", "p90")
_CRATE = "ro-crate-metadata.json"


def rows(root: Path, selectors: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield a row (COLUMNS) for every metric of every recorded cell, and one without a metric for a cell with none.

    Nothing is filtered: `simulated`, `invalid`, `provisional` and `retracted` say what a number is worth. Figures of a
    run's capacity have an empty cell. Raises LcplanError as `list_runs`.
    """
    listed, damaged = list_runs(root, selectors)
    if damaged:
        raise fail("manifest-damaged", damaged[0].message, "`lcplan audit verify` names everything", damaged[0].source)
    records = Records(root)
    with opened(root) as index:
        for one in listed:
            run = _of_run(root, one)
            for cell in one.cells:
                stands = standing(records, index, str(one.predicate["run"]), cell)
                of_cell = run | _of_cell(cell) | {
                    "provisional": bool(stands.provisional), "standing": stands.word
                }  # fmt: skip
                for name, metric in (cell.get("metrics") or {}).items() or [("", {})]:
                    yield of_cell | _of_metric(name, metric)
            logged = (one.predicate.get("capacity") or {}).get("logged") or {}
            whole = run | {"provisional": bool(one.standing.provisional), "standing": one.standing.word}
            for name, value in logged.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    yield whole | {"metric": f"capacity.logged.{name}", "value": float(value)}


def to_csv(found: Iterator[dict[str, Any]]) -> str:
    """Return rows as CSV with a header; booleans are true and false, what is not known is empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in found:
        writer.writerow({key: str(value).lower() if isinstance(value, bool) else value for key, value in row.items()})
    return out.getvalue()


def to_parquet(found: Iterator[dict[str, Any]], output: Path) -> None:
    """Write rows as one parquet file. Raises OSError."""
    import pyarrow as pa
    from pyarrow import parquet

    kinds = (
        dict.fromkeys(_WHOLE, pa.int64()) | dict.fromkeys(_FLAGS, pa.bool_()) | dict.fromkeys(_NUMBERS, pa.float64())
    )
    schema = pa.schema([(name, kinds.get(name, pa.string())) for name in COLUMNS])
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.Table.from_pylist(list(found), schema=schema), sink)
    write_atomic(output, sink.getvalue().to_pybytes())


def to_intoto(root: Path, selectors: Sequence[str] = ()) -> str:
    """Return the in-toto statements of runs, unsigned, one line of JSON each (the manifests as they were sealed)."""
    listed, _ = list_runs(root, selectors)
    return "".join(dumps(manifest.read(root, str(one.predicate["run"]))) + "\n" for one in listed)


def to_crate(root: Path, output: Path, selectors: Sequence[str] = ()) -> Path:
    """Write RO-Crate 1.1 metadata (https://w3id.org/ro/crate/1.1) for runs and return its file.

    `output` is the crate's folder or the metadata file in it; a crate describes only what lies below it. Raises
    LcplanError `crate-elsewhere` when the runs do not.
    """
    folder = output.parent if output.suffix == ".json" else output
    runs = (root / "runs").resolve()
    if not runs.is_relative_to(folder.resolve()):
        raise fail("crate-elsewhere", f"{folder} does not hold the runs, which are in {root}",
                   f"write the metadata into {root} or a folder above it")  # fmt: skip
    listed, _ = list_runs(root, selectors)
    graph: list[dict[str, Any]] = [
        {"@id": _CRATE, "@type": "CreativeWork", "conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"},
         "about": {"@id": "./"}},
        {"@id": "./", "@type": "Dataset", "name": "LLM serving campaign", "hasPart": [],
         "description": "Runs recorded by lcplan, each with the command that made it.", "mentions": []},
    ]  # fmt: skip
    prefix = runs.relative_to(folder.resolve()).as_posix()
    for one in listed:
        _crate_run(graph, one, manifest.read(root, str(one.predicate["run"])), prefix)
    published = max((_ended(one) for one in listed), default="")
    graph[1] |= {"datePublished": published} if published else {}
    file = folder / _CRATE
    text = json.dumps({"@context": "https://w3id.org/ro/crate/1.1/context", "@graph": graph}, indent=1)
    write_atomic(file, text + "\n")
    return file


def _crate_run(graph: list[dict[str, Any]], one: Listed, statement: Mapping[str, Any], prefix: str) -> None:
    run = str(one.predicate["run"])
    here = f"{prefix}/{run}/"
    files = [
        {"@id": f"{here}{subject['name']}", "@type": "File", "name": subject["name"],
         "contentSize": str((subject.get("annotations") or {}).get("bytes", "")), "sha256": subject["digest"]["sha256"]}
        for subject in statement["subject"]
    ]  # fmt: skip
    files.append({"@id": f"{here}{manifest.NAME}", "@type": "File", "name": manifest.NAME})
    parts = [{"@id": file["@id"]} for file in files]
    engine = one.predicate.get("engine") or {}
    tool = f"#{engine.get('kind')}-{engine.get('served_version') or engine.get('version')}"
    if not any(entity["@id"] == tool for entity in graph):
        graph.append({"@id": tool, "@type": "SoftwareApplication", "name": str(engine.get("kind")),
                      "version": str(engine.get("served_version") or engine.get("version"))})  # fmt: skip
    times = one.predicate.get("times") or {}
    graph += [
        {"@id": here, "@type": "Dataset", "name": run, "hasPart": parts,
         "description": f"{one.status}, {one.standing.word}"},
        {"@id": f"#{run}", "@type": "CreateAction", "name": f"run {run}", "instrument": {"@id": tool},
         "object": {"@id": f"{here}cmd.sh"}, "result": {"@id": here},
         **{key: times[name] for key, name in (("startTime", "started"), ("endTime", "ended")) if times.get(name)}},
        *files,
    ]  # fmt: skip
    graph[1]["hasPart"] += [{"@id": here}, *parts]
    graph[1]["mentions"].append({"@id": f"#{run}"})


def _ended(one: Listed) -> str:
    return str((one.predicate.get("times") or {}).get("ended") or "")


def _of_run(root: Path, one: Listed) -> dict[str, Any]:
    """Return a row of a run's own figures, which its cells overlay: a pool was read whatever became of the cells."""
    run = one.predicate
    engine, image = run.get("engine") or {}, run.get("image") or {}
    file = manifest.folder(root, str(run["run"])) / manifest.NAME
    return dict.fromkeys(COLUMNS) | {
        "run": run["run"],
        "cell": "",
        **{key: run.get(key) for key in ("stack", "variant", "layout", "quad", "context", "repeat")},
        "engine": engine.get("kind"),
        "engine_version": engine.get("served_version") or engine.get("version"),
        "image_digest": image.get("digest"),
        "status": "done",
        "simulated": bool(run["simulated"]),
        "invalid": False,
        "retracted": bool(one.standing.retracted),
        "manifest_sha256": digest_bytes(file.read_bytes()),
    }


def _of_cell(cell: Mapping[str, Any]) -> dict[str, Any]:
    definition = cell.get("definition") or {}
    axes = {**{key: definition.get(key) for key in ("prompt", "users")}, **(cell.get("axes") or {})}
    return {
        "cell": cell["cell"],
        **{key: cell.get(key) for key in ("workload", "kind", "status", "fingerprint")},
        "repeat": cell.get("repeat") or 1,
        "experiments": " ".join(cell.get("experiments") or []),
        "prompt": axes.get("prompt"),
        "users": axes.get("users") or cell.get("users"),
        "reason": cell.get("sentence") or cell.get("reason") or "",
        "invalid": cell["status"] == "invalid",
        "limited": bool((cell.get("capacity") or {}).get("limited")),
    }


def _of_metric(name: str, metric: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {key: float(metric[key]) for key in _NUMBERS if metric.get(key) is not None}
    return {"metric": name, "unit": metric.get("unit"), "n": metric.get("n"), **numbers}
