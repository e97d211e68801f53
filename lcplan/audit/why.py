"""Why: from a number, a run, a cell or a metric to the cmd.sh, the recipe line, the plan and the image behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from lcplan.audit import figures
from lcplan.audit.figures import Quantity, Shown
from lcplan.audit.gates import Standing, standing
from lcplan.audit.markdown import SCHEME
from lcplan.audit.refs import Records, Ref, parse
from lcplan.audit.scripts import scripts
from lcplan.record import index as indexes
from lcplan.record import numbers, recipes_kept
from lcplan.record.index import Figure, Index


@dataclass(frozen=True, slots=True)
class Chain:
    """Where one number, cell or run comes from. `rows` are those of points.parquet, empty when they were not read."""

    ref: Ref
    recorded: Quantity | None
    standing: Standing
    cell: Mapping[str, Any] | None
    predicate: Mapping[str, Any]
    rows: tuple[tuple[int, Mapping[str, Any]], ...]
    recipe: tuple[tuple[str, str], ...]
    script: str

    def as_json(self) -> dict[str, Any]:
        """Return what `audit why --json` prints for this chain."""
        run = self.predicate
        return {
            "ref": str(self.ref),
            "value": None if self.recorded is None else float(self.recorded.value),
            "unit": None if self.recorded is None else self.recorded.unit,
            "standing": self.standing.word,
            "reason": self.standing.retracted or self.standing.provisional or self.standing.reason,
            "rows": [{"row": number, **row} for number, row in self.rows],
            "cell": self.cell,
            "run": self.ref.run,
            "simulated": self.standing.simulated,
            "cmd": self.script,
            "recipe": [{"place": place, "text": text} for place, text in self.recipe],
            **{key: run.get(key) for key in ("plan", "image", "engine", "model", "capacity", "node", "times")},
        }


@dataclass(frozen=True, slots=True)
class Answer:
    """What was asked and what leads to it, best first. `matches` counts those that `chains` leaves out, too."""

    query: str
    matches: int
    chains: tuple[Chain, ...]

    def as_json(self) -> dict[str, Any]:
        """Return what `audit why --json` prints."""
        return {"query": self.query, "matches": self.matches, "chains": [c.as_json() for c in self.chains]}


def why(root: Path, query: str, limit: int = 10) -> Answer:
    """Return the chain behind RUN, RUN/CELL or RUN/CELL#metric, or those behind every value that rounds to a number.

    Best first: published, then measured, then simulated and retracted ones; the nearest value first. Raises LcplanError
    for a run, cell or metric that is not there.
    """
    records = Records(root)
    query = query.strip().removeprefix(SCHEME)
    shown = _number(query)
    with indexes.opened(root) as index:
        if shown is None or (root / "runs" / parse(query).run).is_dir():
            return Answer(query, 1, (_named(records, index, parse(query)),))
        found = sorted(_matches(index, shown), key=lambda pair: _order(records, index, pair, shown))
        chains = [_valued(records, index, *pair) for pair in found[:limit]]
        chains.sort(key=lambda chain: chain.standing.word != "published")
        return Answer(query, len(found), tuple(chains))


def _number(query: str) -> Shown | None:
    """Return the number that a whole query is, None for anything else."""
    shown = figures.first(query)
    if shown is None or query[: shown.start].strip("~\u2248 "):
        return None
    rest = query[shown.start + len(shown.text) :].strip()
    return shown if not rest or shown.unit else None


def _named(records: Records, index: Index, ref: Ref) -> Chain:
    cell = records.cell(ref) if ref.cell else None
    recorded = records.quantity(ref) if ref.metric else None
    rows = numbers.rows(records.root, ref.run, ref.cell) if ref.cell else []
    return _chain(records, index, ref, recorded, cell, tuple(rows))


def _valued(records: Records, index: Index, figure: Figure, recorded: Quantity) -> Chain:
    ref = Ref(figure.run, figure.cell, figure.metric)
    cell = records.cell(ref) if ref.cell else None
    return _chain(records, index, ref, recorded, cell, ())


def _chain(
    records: Records,
    index: Index,
    ref: Ref,
    recorded: Quantity | None,
    cell: Mapping[str, Any] | None,
    rows: tuple[tuple[int, Mapping[str, Any]], ...],
) -> Chain:
    predicate = records.run(ref.run)
    return Chain(
        ref=ref,
        recorded=recorded,
        standing=standing(records, index, ref.run, cell),
        cell=cell,
        predicate=predicate,
        rows=rows,
        recipe=tuple(dict.fromkeys(_recipe(records.root, predicate, cell))),
        script=_script(records.root, ref.run),
    )


def _matches(index: Index, shown: Shown) -> Iterator[tuple[Figure, Quantity]]:
    """Yield the recorded figures that round to a number, in whatever unit of the same kind they were recorded."""
    kind, factor = figures.family(shown.unit)
    known = {f for name, f in figures.factors() if name == kind} if shown.unit else set()
    seen = set()
    for scale in known or {Decimal(1)}:
        for low, high in figures.interval(shown, factor):
            for figure in index.between(low / scale, high / scale):
                unit = figures.unit_of(figure.metric) if figure.unit is None else figure.unit
                recorded = Quantity(Decimal(figure.text), unit)
                if figure not in seen and figures.compare(shown, recorded) in ("right", "over-precise"):
                    seen.add(figure)
                    yield figure, recorded


def _order(records: Records, index: Index, pair: tuple[Figure, Quantity], shown: Shown) -> tuple[Any, ...]:
    figure, recorded = pair
    seq, simulated = index.places([figure.run]).get(figure.run, (0, False))
    factor = figures.family(shown.unit or recorded.unit or "")[1]
    return (
        records.retracted(figure.run) is not None,
        simulated,
        figure.status != "done",
        figures.distance(shown, factor, recorded.base),
        "." in figure.metric,
        -seq,
    )


def _recipe(root: Path, predicate: Mapping[str, Any], cell: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Yield the recipe lines behind a run: the stack's, then those of experiments (only the cell's, if named)."""
    source = str((cell or {}).get("source") or "")
    for number, recipe in enumerate(predicate.get("recipe") or []):
        line = int(recipe.get("line") or 0)
        place = f"{recipe['file']}:{line}"
        if number == 0 or not source or f"{source}:".startswith(f"{place}:"):
            yield place, (recipes_kept.line(root, str(recipe.get("hash", "")), line) or "").strip()


def _script(root: Path, run: str) -> str:
    """Return cmd.sh; the scripts of a split layout follow it, each under its name."""
    found = scripts(root, run)
    return "\n".join(text if name == "cmd.sh" else f"# {name}\n{text}" for name, text in found.items())
