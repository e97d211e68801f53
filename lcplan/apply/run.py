"""The use case `apply`: lock, recover, check, execute; and `destroy`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from lcplan.apply.events import Sink
from lcplan.apply.executor import Executor, Outcome
from lcplan.apply.journal import Journal
from lcplan.apply.prepare import Ready, load_plan
from lcplan.apply.recover import recover, stop_orphans
from lcplan.apply.serve import end_serves
from lcplan.apply.steps import Settings
from lcplan.plan.model import Plan
from lcplan.record import lock, manifest
from lcplan.record import state as states


def apply(
    plan_path: Path, root: Path, *, variables: Mapping[str, str], rehearsal: bool, speed: float, wait: bool, sink: Sink,
    hash_weights: bool = False,
) -> Outcome:  # fmt: skip
    """Apply a plan file and return what became of it. Raises LcplanError when it may not be applied."""
    with lock.hold(root, "lcplan apply", wait):
        recover(root, sink)
        ready = load_plan(plan_path, root, variables)
        if not ready.plan.changes:
            return Outcome()
        return _execute(ready, root, rehearsal or ready.plan.runtime == "sim", speed, sink, hash_weights)


def destroy(root: Path, wait: bool, sink: Sink) -> list[str]:
    """End everything that this lineage runs, serve entries too; return the runs that were ended or sealed.

    Raises LcplanError `serve-elsewhere` for an entry that another machine serves; the others are ended before.
    """
    with lock.hold(root, "lcplan destroy", wait):
        return [*recover(root, sink), *stop_orphans(root, sink), *end_serves(root, sink)]


def begin(ready: Ready, root: Path, rehearsal: bool, speed: float) -> tuple[states.State, Settings]:
    """Return the state, which the first apply makes, and what a plan's runs are told. Raises LcplanError, OSError."""
    state, _ = states.load(root)
    if state is None:
        state = states.new()
        states.save(root, state)
    recipes = {name: Path(name).read_bytes() for name in ready.recipes.blobs}
    settings = Settings(
        root, state.lineage, ready.id, ready.shown, rehearsal, speed, recipes, ready.recipes.blobs
    )  # fmt: skip
    return state, settings


def done_cells(plan: Plan, plan_id: str, root: Path, simulated: bool) -> set[str]:
    """Return the fingerprints of cells that need not be measured: recorded as done since the plan was made."""
    state, _ = states.load(root)
    if state is None:
        return set()
    cells = state.partition(simulated).cells
    done = set() if simulated else _answered_by_simulator(plan, plan_id, state, root)
    for cell in plan.cells:
        found = cells.get(cell.fingerprint)
        if found is None or found.status != "done":
            continue
        # A cell that the plan measures again although it is recorded counts only when another run has it now.
        if cell.recorded is None or found.run != cell.recorded:
            done.add(cell.fingerprint)
    return done


def _answered_by_simulator(plan: Plan, plan_id: str, state: states.State, root: Path) -> set[str]:
    """Return the cells that this very plan has done, no rehearsal, on servers that turned out to be simulators.

    They are no measurements, and a new plan measures them; but a plan that is applied again repeats nothing.
    """
    runs: dict[str, bool] = {}

    def own(run: str) -> bool:
        if run not in runs:
            body = manifest.read(root, run)["predicate"]
            runs[run] = body["plan"]["id"] == plan_id and body["runtime"] != "sim"
        return runs[run]

    cells = state.simulated.cells
    found = ((cell.fingerprint, cells.get(cell.fingerprint)) for cell in plan.cells if cell.action in ("+", "~"))
    return {fingerprint for fingerprint, kept in found if kept and kept.status == "done" and own(kept.run)}


def _execute(ready: Ready, root: Path, rehearsal: bool, speed: float, sink: Sink, hash_weights: bool) -> Outcome:
    state, settings = begin(ready, root, rehearsal, speed)
    settings = replace(settings, hash_weights=hash_weights)
    done = done_cells(ready.plan, ready.id, root, rehearsal)
    journal = Journal(root, ready.id, "sim" if rehearsal else "real")
    served = {name: str(known["place"]["node"]) for name, known in state.serves.items()}
    executor = Executor(ready.plan, settings, journal, sink, done, served)
    finished = False
    try:
        outcome = asyncio.run(_with_signals(executor))
        finished = not outcome.trouble
        return outcome
    finally:
        journal.close(finished)


async def _with_signals(executor: Executor) -> Outcome:
    with _handlers(executor):
        return await executor.run()


@contextlib.contextmanager
def _handlers(executor: Executor) -> Iterator[None]:
    """Ctrl-C once: finish the cell; twice, or SIGTERM: stop now. Handlers are removed again."""
    loop = asyncio.get_running_loop()
    wanted = {signal.SIGINT: executor.interrupt, signal.SIGTERM: executor.terminate, signal.SIGHUP: executor.terminate}
    for number, handler in wanted.items():
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in wanted:
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.remove_signal_handler(number)
