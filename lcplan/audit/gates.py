"""Whether a recorded cell may be published. Derived when read, never stored: gates look at all records of a launch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


def _failed_gate(siblings: list[Mapping[str, Any]], experiment: str, workload: str, rule: object) -> str:
    """Return why a gate has not passed: `all` asks that each cell of the workload is done with all needles found."""
    latest: dict[str, Mapping[str, Any]] = {}
    for predicate in siblings:
        for cell in predicate["cells"]:
            named = workload in (cell.get("workload"), cell.get("kind"))
            if named and experiment in (cell.get("experiments") or predicate.get("experiments") or []):
                known = latest.get(cell["fingerprint"])
                if known is None or known["status"] != "done" or cell["status"] == "done":
                    latest[cell["fingerprint"]] = cell
    gate = f"gate '{workload}: {rule}' of experiment '{experiment}'"
    if rule != "all":
        return f"{gate} is not known to this version"
    if not latest:
        return f"{gate} has no record yet"
    for cell in latest.values():
        if cell["status"] != "done":
            return f"{gate}: {cell['cell']} is {cell['status']}"
        if missed := _missed(cell.get("metrics") or {}):
            return f"{gate}: {cell['cell']} {missed}"
    return ""


def _missed(metrics: Mapping[str, Mapping[str, Any]]) -> str:
    for name, found in metrics.items():
        asked = metrics.get(name.removesuffix("_found") + "_asked") if name.endswith("_found") else None
        for statistic in ("value", "min"):
            if asked and found.get(statistic, 0) < asked.get(statistic, 0):
                return f"found {found[statistic]:g} of {asked[statistic]:g}"
    return ""
