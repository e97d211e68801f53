"""From a finished launch to its manifest: what is observed, what is written, what the state learns."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lcplan import __version__
from lcplan.apply import gate, gpus
from lcplan.apply.secrets import mask_logs, secret_values
from lcplan.base.canonical import digest, digest_bytes
from lcplan.engine.base import RUN_ID
from lcplan.plan.model import Launch, Server
from lcplan.record import manifest, recipes_kept
from lcplan.record import state as states

if TYPE_CHECKING:
    from lcplan.apply.steps import LaunchRun

_RESULT_FIELDS = ("cell", "fingerprint", "status", "reason", "sentence", "metrics", "counters", "seeds", "queued",
                 "started", "ended", "virtual_s", "marks", "neighbours")  # fmt: skip


def observe(launch: Launch, rehearsal: bool, shell: Sequence[str]) -> dict[str, Any]:
    """Return what is only observed: model files, driver, host. Never part of a fingerprint."""
    made: dict[str, Any] = {"host": {"name": platform.node(), "kernel": platform.release()}}
    made["driver"] = {} if rehearsal else gpus.driver(shell)
    made["model_files"] = model_files(Path(launch.model_path))
    return made


def model_files(folder: Path) -> dict[str, Any]:
    """Return the model's fingerprint: hashes of config and index, sizes and times of the shards; {} if not readable."""
    made: dict[str, Any] = {}
    try:
        for name in ("config.json", "generation_config.json", "model.safetensors.index.json", "tokenizer_config.json"):
            if (folder / name).is_file():
                made[name] = digest_bytes((folder / name).read_bytes())
        shards = sorted(folder.glob("*.safetensors"))
        made |= {"shards": {p.name: [p.stat().st_size, int(p.stat().st_mtime)] for p in shards}} if shards else {}
    except OSError:
        return {}
    return made


def context(run: LaunchRun) -> dict[str, Any]:
    """Return what the journal must hold so that a run can be sealed without the apply that began it."""
    launch, settings = run.launch, run.settings
    wanted = [c for c in launch.cells if c.fingerprint in run.todo]
    return {
        "simulated": run.simulated,
        "runtime": run.runtime.name,
        "predicate": predicate(run, []),
        "cells": [{"cell": c.name, "fingerprint": c.fingerprint, **_declared(c)} for c in wanted],
        "recipes": dict(settings.blobs),
    }


def learned(run: LaunchRun) -> dict[str, Any]:
    """Return what a run has learned of its server since it began: the journal holds it for a recovery."""
    known = predicate(run, [])
    keys = ("simulated", "speed", "image", "engine", "driver", "node", "model", "capacity", "times")
    return {key: known[key] for key in keys}


def script_header(run: LaunchRun) -> list[str]:
    """Return the comment lines on top of cmd.sh."""
    lines = [f"lcplan {__version__}: run {run.run}", f"plan {run.settings.plan_id}, {run.launch.source}"]
    if run.rehearsal:
        lines.append("Rehearsal: this command was not executed; its argv was handed to lcplan's simulator.")
    return lines


def predicate(run: LaunchRun, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the manifest says of a run."""
    launch, plan, settings = run.launch, run.plan, run.settings
    argv, images = launch.argv, run.facts.get("images", {})
    declared = {c.name: c for c in launch.cells}
    return {
        "run": run.run,
        "simulated": run.simulated,
        "lcplan": __version__,
        "lineage": settings.lineage,
        "plan": {"id": settings.plan_id, "file": settings.plan_file, "commit": plan.commit, "dirty": plan.dirty},
        "recipe": _recipe_places(launch, settings.blobs),
        "experiments": sorted({e for c in launch.cells for e in c.experiments}),
        "stack": launch.stack,
        "variant": launch.variant,
        "model": {
            "name": launch.model,
            "path": launch.model_path,
            "files": run.facts.get("model_files", {}),
            **({"weights": run.facts["weights"]} if "weights" in run.facts else {}),
        },
        "layout": launch.layout,
        "label": launch.label,
        "context": launch.context,
        "repeat": launch.repeat,
        "quad": launch.placement.quad if launch.placement else None,
        "placement": asdict(launch.placement) if launch.placement else None,
        "runtime": run.runtime.name,
        "runtime_declared": launch.runtime,
        "engine": {
            "name": launch.engine,
            "kind": launch.kind,
            "version": launch.version,
            "served_version": run.facts.get("served_version"),
            "identity": run.facts.get("identity"),
            "choices": run.facts.get("choices", {}),
        },
        "image": images.get(launch.servers[-2:][0].role, {"declared": launch.image, "id": None, "digest": None}),
        "argv": [run.run if word == RUN_ID else word for word in argv],
        "argv_template_sha256": digest(argv),
        "env": {k: v if isinstance(v, str) else {"from_env": v["from_env"]} for k, v in launch.servers[-1].env.items()},
        **({"servers": [_server(run, one) for one in launch.servers]} if len(launch.servers) > 1 else {}),
        "behaviour": launch.behaviour,
        "fingerprint": launch.digest,
        "fingerprint_version": plan.fingerprint_version,
        "node": {"fingerprint": plan.node, **run.facts.get("host", {})},
        "driver": run.facts.get("driver", {}),
        "capacity": {
            "logged": run.capacity.as_json() if run.capacity else None,
            "predicted": launch.capacity.get("predicted"),
            "history": launch.capacity.get("history"),
            "law": gate.law(launch, run.capacity, results),
            "fits": run.facts.get("fits", {}),
            "log": run.facts.get("log"),
        },
        "gates": dict(plan.gates),
        "policy": plan.policy,
        "times": run.times,
        "speed": run.speed if run.simulated else None,
        "cells": [_cell(result, declared.get(result["cell"]), run.facts.get("fits", {})) for result in results],
    }


def _server(run: LaunchRun, one: Server) -> dict[str, Any]:
    """Return what the manifest says of one server of a split layout."""
    assert run.launch.placement is not None
    placed = run.launch.placement.roles[one.role]
    return {
        **one._asdict(),
        "image": run.facts.get("images", {}).get(one.role, {"declared": one.image, "id": None, "digest": None}),
        "argv": [run.run if word == RUN_ID else word for word in one.argv],
        "argv_template_sha256": digest(one.argv),
        "port": placed.port,
        "gpus": list(placed.gpus),
        "cpus": placed.cpus,
    }


def seal(run: LaunchRun) -> None:
    """Seal the run's folder and note its cells in the state. Raises OSError, LcplanError."""
    run.times["ended"] = datetime.now(UTC).isoformat(timespec="milliseconds")
    for text in run.settings.recipes.values():
        recipes_kept.keep(run.settings.root, text)
    finish(run.settings.root, run.folder, predicate(run, list(run.results.values())), run.settings.plan_id)


def finish(root: Path, folder: Path, body: dict[str, Any], plan_id: str) -> None:
    """Merge the measurements of a staging folder, seal it, and note its cells in the state."""
    from lcplan.workload.parts import merge_parts

    merge_parts(folder)
    mask_logs(folder, secret_values([body["env"], *(one["env"] for one in body.get("servers") or ())]))
    manifest.seal(root, folder, body)
    note(root, body, plan_id)


def note(root: Path, body: Mapping[str, Any], plan_id: str) -> None:
    """Write the cells of a sealed run into the state; a serial is made for it. Doing it twice changes nothing."""
    state, _ = states.load(root)
    if state is None:
        state = states.new(body["lineage"])
    part = state.partition(bool(body["simulated"]))
    if any(c["fingerprint"] in part.cells and part.cells[c["fingerprint"]].run == body["run"] for c in body["cells"]):
        return
    states.absorb(state, body)
    states.note_plan(part, plan_id)
    states.save(root, state)


def result_fields(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the manifest keeps of a cell's result; its rows stand in points.parquet."""
    return {key: result[key] for key in _RESULT_FIELDS if key in result}


def _declared(cell: Any) -> dict[str, Any]:
    return {
        "definition": dict(cell.definition),
        "axes": dict(cell.axes),
        "workload": cell.workload,
        "kind": cell.kind,
        "repeat": cell.repeat,
        "users": cell.users,
        "experiments": cell.experiments,
        "source": cell.source,
    }


def _cell(result: Mapping[str, Any], cell: Any, fits: Mapping[str, Any]) -> dict[str, Any]:
    made = result_fields(result)
    if cell is not None:
        made |= _declared(cell)
    found = fits.get(result["cell"])
    if found is not None:
        made["capacity"] = found
    return made


def _recipe_places(launch: Launch, blobs: Mapping[str, str]) -> list[dict[str, Any]]:
    made = []
    for source in dict.fromkeys([launch.source, *(c.source for c in launch.cells)]):
        file, line, _ = source.rsplit(":", 2) if source.count(":") >= 2 else (source, "0", "0")
        made.append({"file": file, "line": int(line), "hash": blobs.get(file)})
    return made
