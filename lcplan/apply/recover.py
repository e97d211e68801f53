"""What a killed apply left: servers are ended, what was measured is sealed, the rest is noted as not measured.

Only what carries this lineage's labels is touched. A finished cell is never measured again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lcplan.apply import sealing
from lcplan.apply.events import Sink
from lcplan.apply.journal import Launched, Unfinished, unfinished
from lcplan.base.diagnostics import LcplanError
from lcplan.record import manifest
from lcplan.record import state as states
from lcplan.runtime import get as runtime_of
from lcplan.runtime.base import STARTING_GRACE_S, Found, Runtime

GRACE_S = 30.0
RUNTIMES_WITH_LABELS = ("process", "docker")
"""Where servers are found by label; a rehearsal's are processes."""


def recover(root: Path, sink: Sink) -> list[str]:
    """Finish what earlier applies left unfinished; return the ids of the runs that were dealt with.

    The caller holds the lock. Raises LcplanError, OSError when a record can't be written; calling it again goes on.
    """
    manifest.finish(root)
    dealt: list[str] = []
    for journal in unfinished(root):
        for launched in journal.runs.values():
            if not launched.sealed:
                _run(root, journal, launched, sink)
                dealt.append(launched.run)
        journal.path.unlink()
    stop_orphans(root, sink)
    return dealt


def stop_orphans(root: Path, sink: Sink) -> list[str]:
    """End every server of this lineage that no journal and no serve entry accounts for; return what was ended."""
    state, _ = states.load(root)
    if state is None:
        return []
    kept = {known["run"] for known in state.serves.values()}
    ended = []
    for name in RUNTIMES_WITH_LABELS:
        runtime = runtime_of(name)
        for found in _found(runtime, state.lineage):
            if found.run in kept:
                continue
            sink({"event": "orphan", "run": found.run, "what": found.what})
            runtime.stop(found.handle, GRACE_S)
            ended.append(found.run)
    return ended


def _run(root: Path, journal: Unfinished, launched: Launched, sink: Sink) -> None:
    context = launched.context
    body: dict[str, Any] = context["predicate"]
    sink({"event": "recovering", "run": launched.run, "launch": launched.launch, "done": len(launched.results)})
    folder = root / "staging" / launched.run
    _stop(launched, folder.resolve())
    if (root / "runs" / launched.run).is_dir():
        sealing.note(root, manifest.read(root, launched.run)["predicate"], journal.plan)
        return
    folder.mkdir(parents=True, exist_ok=True)
    results = {r["cell"]: r for r in launched.results}
    body["cells"] = [_fate(cell, results.get(cell["cell"]), launched.measuring) for cell in context["cells"]]
    body["recovered"] = True
    sealing.finish(root, folder, body, journal.plan)


def _fate(cell: dict[str, Any], result: dict[str, Any] | None, measuring: str | None) -> dict[str, Any]:
    if result is not None:
        return {**sealing.result_fields(result), **cell}
    if cell["cell"] == measuring:
        return {**cell, "status": "interrupted", "reason": "killed", "metrics": {},
                "sentence": "the apply was killed while the cell was measured"}  # fmt: skip
    return {**cell, "status": "not_run", "reason": "killed", "metrics": {},
            "sentence": "the apply was killed before this cell"}  # fmt: skip


def _stop(launched: Launched, folder: Path) -> None:
    body = launched.context["predicate"]
    grace_s = GRACE_S if "ready" in body["times"] else STARTING_GRACE_S
    for handle in reversed(launched.handles):
        runtime_of(handle["runtime"]).stop(handle, grace_s)
    lineage = str(body["lineage"])
    for name in RUNTIMES_WITH_LABELS:
        runtime = runtime_of(name)
        # Where the run's own servers may be left, an engine that does not answer stops the recovery.
        for found in runtime.find(lineage) if name == launched.context["runtime"] else _found(runtime, lineage):
            if found.run == launched.run:
                # The log of a container that no journal knew yet is still with its engine.
                runtime.stop({**found.handle, "log": str(folder / found.log)}, grace_s)


def _found(runtime: Runtime, lineage: str) -> list[Found]:
    """Return what a runtime finds; an engine that does not answer runs nothing that could be ended now."""
    try:
        return runtime.find(lineage)
    except LcplanError:
        return []
