"""Whether a recorded cell may be published. Derived when read, never stored: gates look at all records of a launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lcplan.audit.refs import Records
from lcplan.record.index import Index


@dataclass(frozen=True, slots=True)
class Standing:
    """How a cell stands. `provisional` and `retracted` say why, or are "". Simulated is a state that no gate lifts."""

    status: str
    reason: str
    simulated: bool
    retracted: str
    provisional: str

    @property
    def word(self) -> str:
        """The strongest of retracted, simulated, invalid (or failed, ...), provisional, published."""
        if self.retracted:
            return "retracted"
        if self.simulated:
            return "simulated"
        if self.status != "done":
            return self.status
        return "provisional" if self.provisional else "published"


def standing(records: Records, index: Index, run: str, cell: Mapping[str, Any] | None = None) -> Standing:
    """Return how a cell of a run stands, or the run itself when no cell is given."""
    predicate = records.run(run)
    cells = [cell] if cell is not None else predicate["cells"]
    experiments = sorted({e for c in cells for e in c.get("experiments") or predicate.get("experiments") or []})
    return Standing(
        status=str(cell["status"]) if cell is not None else run_status(predicate),
        reason=str((cell or {}).get("reason") or ""),
        simulated=bool(predicate["simulated"]),
        retracted=_sentence(records.retracted(run)),
        provisional=_provisional(records, _siblings(records, index, predicate), predicate, experiments),
    )


def run_status(predicate: Mapping[str, Any]) -> str:
    """Return the status of a run: that of its cells when they agree, else the worst of them."""
    found = {cell["status"] for cell in predicate["cells"]}
    order = ("failed", "interrupted", "invalid", "blocked", "not_run", "done")
    return next((status for status in order if status in found), str(predicate.get("status") or "not_run"))


def _sentence(why: str | None) -> str:
    return "" if why is None else why or "no reason was given"


def _siblings(records: Records, index: Index, predicate: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the standing runs of the same launch fingerprint, oldest first."""
    launch = str(predicate.get("fingerprint", ""))
    runs = index.of_launch(launch, bool(predicate["simulated"])) if launch else []
    return [records.run(run) for run in runs if records.retracted(run) is None and records.has(run)] or [predicate]


def _provisional(
    records: Records, siblings: list[Mapping[str, Any]], predicate: Mapping[str, Any], experiments: Iterable[str]
) -> str:
    """Return why no experiment of a cell is published, "" when one is."""
    required = (predicate.get("policy") or {}).get("gates") == "required"
    gates = predicate.get("gates") or {}
    reasons = []
    for experiment in experiments:
        rules = gates.get(experiment) or {}
        if not rules and not required:
            return ""
        reason = "" if rules else f"experiment '{experiment}' has no gates and the policy requires them"
        for workload, rule in rules.items():
            reason = reason or _failed_gate(siblings, experiment, workload, rule)
        if not reason:
            return ""
        reasons.append(reason)
    if not reasons and required:
        return "no experiment with gates holds it"
    return "; ".join(reasons)


def _failed_gate(siblings: list[Mapping[str, Any]], experiment: str, name: str, rule: object) -> str:
    """Return why a gate has not passed, "" when it has: `all` asks the same of each cell that the gate is about."""
    gate = f"gate '{name}: {rule}' of experiment '{experiment}'"
    if rule != "all":
        return f"{gate} is not known to this version"
    concerned, wrong = _GATES.get(name, (lambda cell: name in (cell.get("workload"), cell.get("kind")), _lost))
    cells = [cell for cell in _latest(siblings, experiment) if concerned(cell)]
    if not cells:
        return f"{gate} has no record yet"
    for cell in cells:
        if cell["status"] != "done":
            return f"{gate}: {cell['cell']} is {cell['status']}"
        if said := wrong(cell):
            return f"{gate}: {cell['cell']} {said}"
    return ""


def _latest(siblings: list[Mapping[str, Any]], experiment: str) -> list[Mapping[str, Any]]:
    """Return the newest record of each cell of an experiment, one that is done before one that is not."""
    latest: dict[str, Mapping[str, Any]] = {}
    for predicate in siblings:
        for cell in predicate["cells"]:
            if experiment in (cell.get("experiments") or predicate.get("experiments") or []):
                known = latest.get(cell["fingerprint"])
                if known is None or known["status"] != "done" or cell["status"] == "done":
                    latest[cell["fingerprint"]] = cell
    return list(latest.values())


def _lost(cell: Mapping[str, Any]) -> str:
    """Return how many needles of a cell were found, "" when all that were asked for."""
    return _missed(cell.get("metrics") or {})


def _unasked(cell: Mapping[str, Any]) -> str:
    if not (cell.get("metrics") or {}).get("needles_asked"):
        return "asked no needle, since its load was not seen to run"
    return _lost(cell)


def _incomplete(cell: Mapping[str, Any]) -> str:
    metrics = cell.get("metrics") or {}
    sent, completed = (metrics.get(name, {}).get("value", 0) for name in ("sent", "completed"))
    return f"completed {completed:g} of {sent:g}" if completed < sent else ""


def _limited(cell: Mapping[str, Any]) -> str:
    found = cell.get("capacity") or {}
    return f"is capacity-limited, {found.get('effective')} fit" if found.get("limited") else ""


_GATES: Mapping[str, tuple[Callable[[Mapping[str, Any]], bool], Callable[[Mapping[str, Any]], str]]] = {
    "needle_under_load": (lambda cell: bool((cell.get("definition") or {}).get("needle")), _unasked),
    "completed": (lambda cell: True, _incomplete),
    "capacity": (lambda cell: True, _limited),
}
"""Gates that are about no workload of their own: which cells they are about, and what is wrong with one.

Any other name is that of a workload or of a kind of workloads, all of whose needles must be found.
"""


def _missed(metrics: Mapping[str, Mapping[str, Any]]) -> str:
    for name, found in metrics.items():
        asked = metrics.get(name.removesuffix("_found") + "_asked") if name.endswith("_found") else None
        for statistic in ("value", "min"):
            if asked and found.get(statistic, 0) < asked.get(statistic, 0):
                return f"found {found[statistic]:g} of {asked[statistic]:g}"
    return ""
