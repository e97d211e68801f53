"""What a killed apply left: servers are ended, what was measured is sealed, the rest is noted as not measured.

Only what carries this lineage's labels is touched. A finished cell is never measured again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lcplan.apply import sealing
from lcplan.apply.events import Sink
from lcplan.apply.journal import Launched, Unfinished, unfinished
from lcplan.record import manifest
from lcplan.record import state as states
from lcplan.runtime import get as runtime_of

GRACE_S = 30.0


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
    ended = []
    runtime = runtime_of("process")
    for found in runtime.find(state.lineage):
        if found.run in state.serves:
            continue
        sink({"event": "orphan", "run": found.run, "what": found.what})
        runtime.stop(found.handle, GRACE_S)
        ended.append(found.run)
    return ended


def _run(root: Path, journal: Unfinished, launched: Launched, sink: Sink) -> None:
    context = launched.context
    body: dict[str, Any] = context["predicate"]
    sink({"event": "recovering", "run": launched.run, "launch": launched.launch, "done": len(launched.results)})
    _stop(launched, str(context["runtime"]), str(body["lineage"]))
    if (root / "runs" / launched.run).is_dir():
        sealing.note(root, manifest.read(root, launched.run)["predicate"], journal.plan)
        return
    folder = root / "staging" / launched.run
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


def _stop(launched: Launched, runtime_name: str, lineage: str) -> None:
    runtime = runtime_of(runtime_name)
    if launched.handle is not None:
        runtime.stop(launched.handle, GRACE_S)
    for found in runtime.find(lineage):
        if found.run == launched.run:
            runtime.stop(found.handle, GRACE_S)
