"""Simulated records of a whole plan without starting anything: for trying plans, audits and reports at scale.

The figures follow the estimates table. They are marked simulated like those of a rehearsal, and as not even rehearsed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from lcplan.apply import sealing
from lcplan.apply.events import quiet
from lcplan.apply.journal import Journal
from lcplan.apply.prepare import Ready, load_plan
from lcplan.apply.run import begin, done_cells
from lcplan.apply.steps import LaunchRun, Settings
from lcplan.engine.base import RUN_ID
from lcplan.engine.shell import render_script
from lcplan.plan import estimate
from lcplan.plan.model import Cell, Launch
from lcplan.record import lock, manifest, recipes_kept
from lcplan.record import state as states

_SPEED = 200.0


def record(plan_path: Path, root: Path, variables: Mapping[str, str], wait: bool) -> list[str]:
    """Seal one run per launch of a plan that has cells left; return their ids. Raises LcplanError for a stale plan."""
    with lock.hold(root, "lcplan sim record", wait):
        ready = load_plan(plan_path, root, variables)
        state, settings = begin(ready, root, True, _SPEED)
        for text in settings.recipes.values():
            recipes_kept.keep(root, text)
        done = done_cells(ready.plan, ready.id, root, True)
        runs = []
        for launch in ready.plan.launches:
            todo = {c.fingerprint for c in launch.cells if c.action in ("+", "~")} - done
            if todo:
                body = _seal(ready, launch, todo, settings)
                states.absorb(state, body)
                states.note_plan(state.simulated, ready.id)
                runs.append(str(body["run"]))
        states.save(root, state)
        return runs


def _seal(ready: Ready, launch: Launch, todo: set[str], settings: Settings) -> dict[str, Any]:
    # No step of the run is taken, so there is nothing to note in a journal.
    run = LaunchRun(ready.plan, launch, todo, settings, cast(Journal, None), quiet, asyncio.Lock())
    now = datetime.now(UTC)
    run.run = manifest.run_id(
        launch.stack, launch.layout, launch.placement.quad if launch.placement else None, launch.context or 0,
        launch.kind, launch.variant, now, lambda name: manifest.taken(settings.root, name),
    )  # fmt: skip
    run.folder.mkdir(parents=True)
    argv = [run.run if word == RUN_ID else word for word in launch.argv]
    env = {name: value for name, value in launch.env.items() if isinstance(value, str)}
    header = [*sealing.script_header(run), "Nothing was started: the record follows the estimates table."]
    (run.folder / "cmd.sh").write_text(render_script(argv, env, header=header))
    end = now + timedelta(seconds=launch.seconds)
    run.times = {"begun": now.isoformat(), "started": now.isoformat(), "ended": end.isoformat()}
    results = [_result(cell, launch.engines) for cell in launch.cells if cell.fingerprint in todo]
    body = {**sealing.predicate(run, results), "estimated": True}
    manifest.seal(settings.root, run.folder, body)
    return body


def _result(cell: Cell, engines: int) -> dict[str, Any]:
    d = cell.definition
    prompt = int(d.get("prompt") or d.get("history") or max(d.get("turns", [0])))
    ranks = max(1, min(engines, cell.users))
    ttft = estimate.prefill_seconds(prompt) * -(-cell.users // ranks)
    step_ms = 1000 * estimate.decode_seconds(1, cell.users)
    output = int(d["output"])
    figures = {
        "ttft_s": (ttft, "s"),
        "tpot_ms": (step_ms, "ms"),
        "user_tokens_per_s": (1000 / step_ms, "tokens/s"),
        "e2e_s": (ttft + output * step_ms / 1000, "s"),
        "prefill_tokens_per_s": (prompt / ttft, "tokens/s"),
        "output_tokens_per_s": (cell.users * output / (ttft + output * step_ms / 1000), "tokens/s"),
        "completed": (float(cell.users), "requests"),
        "sent": (float(cell.users), "requests"),
    }
    if cell.kind == "needle":
        figures |= {"needles_found": (float(len(d["depths"])), "needles"),
                    "needles_asked": (float(len(d["depths"])), "needles")}  # fmt: skip
    metrics = {
        name: {"value": round(value, 6), "unit": unit, "n": 1, "min": round(value, 6), "max": round(value, 6),
               "values": [round(value, 6)]}
        for name, (value, unit) in figures.items()
    }  # fmt: skip
    return {"cell": cell.name, "fingerprint": cell.fingerprint, "status": "done", "reason": None, "metrics": metrics}
