"""Capacity in a plan: what is known of every pool before it exists, which cells it limits, which it blocks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lcplan.base.diagnostics import Diagnostic, LcplanError, has_errors
from lcplan.base.layout import parse_layout
from lcplan.capacity import predict as predictions
from lcplan.capacity.agree import best_known
from lcplan.capacity.cap import sequence_cap
from lcplan.capacity.fit import Cost, PoolSource
from lcplan.capacity.pool import KvPool, Past, fit_json, limited, unmet, why
from lcplan.capacity.table import Point, Row, table
from lcplan.plan.model import Cell, Launch
from lcplan.recipe.expand import resolve_stack
from lcplan.recipe.load import Recipes


@dataclass(frozen=True)
class Assessment:
    """What is known of a launch's pool, with the figures that it was chosen from, each None where there is none."""

    pool: KvPool
    predicted: dict[str, Any] | None
    declared: int | None
    past: Past | None

    def as_json(self) -> dict[str, Any]:
        """Return what the plan keeps of it, for the comparison after launch."""
        return {
            "predicted": self.predicted,
            "declared": self.declared,
            "history": self.past.as_json() if self.past else None,
        }


def assess(
    recipes: Recipes, launches: Sequence[Launch], past: Callable[[Launch], Past | None], again: Set[str] = frozenset()
) -> None:
    """Set what fits of every cell that is to be measured, and block those that the experiment does not want then.

    `again` holds fingerprints that history alone does not block, since the user asked to measure them once more.
    """
    configs: dict[str, dict[str, Any] | None] = {}
    for launch in launches:
        todo = [cell for cell in launch.cells if cell.action in ("+", "~")]
        if not todo:
            continue
        known = assessment(recipes, launch, past, configs)
        launch.capacity = known.as_json()
        for cell in todo:
            _wishes(recipes, cell)
            _judge(cell, known.pool, cell.fingerprint in again)
        _settle(launch, len(todo))


def assessment(
    recipes: Recipes, launch: Launch, past: Callable[[Launch], Past | None], configs: dict[str, dict[str, Any] | None]
) -> Assessment:
    """Return what is known of a launch's pool before it starts. `configs` keeps the config.json of models."""
    stack = resolve_stack(recipes.data, launch.stack, launch.variant)
    declared = stack.get("capacity", {})
    known = past(launch)
    if launch.model not in configs:
        configs[launch.model] = model_config(recipes.data["models"][launch.model])
    predicted = _predict(recipes, launch, configs[launch.model])
    said = predicted.pool_tokens if predicted else None
    if said is not None and known is not None and not known.exact:
        said = round(said * known.ratio)
    exact = known if known is not None and known.exact else None
    tokens, source = best_known(said, exact.pools if exact else (), declared.get("pool_tokens"))
    if tokens is None and known is not None and known.pools:
        tokens, source = best_known(None, known.pools)
    pool = _pool(recipes, launch, tokens, source, predicted, known, declared)
    return Assessment(pool, _shown(predicted) if predicted else None, declared.get("pool_tokens"), known)


def tables(recipes: Recipes, root: Path) -> tuple[dict[str, Any], list[Diagnostic]]:
    """Return the tables of what fits on every stack that experiments use, and warnings. Raises LcplanError.

    What real runs logged counts; where there are none, that of simulated ones, said to be so.
    """
    from lcplan.apply.snapshot import snapshot
    from lcplan.plan.desired import desired, require_node

    problems = list(recipes.diagnostics)
    require_node(recipes)
    launches, _ = desired(recipes, None, problems)
    if has_errors(problems):
        raise LcplanError(*(one for one in problems if one.severity == "error"))
    pasts = [snapshot(root, simulated)[0].past for simulated in (False, True)]
    configs: dict[str, dict[str, Any] | None] = {}
    rows: dict[tuple[str, str | None], Row] = {}
    for launch in launches:
        simulated = pasts[0](launch) is None and pasts[1](launch) is not None
        known = assessment(recipes, launch, pasts[simulated], configs)
        key = launch.stack, launch.variant
        points = rows[key].points if key in rows else ()
        points += tuple(Point(one.name, one.length, one.users, known.pool.at(one.length)) for one in launch.cells)
        sources = known.as_json() | {"simulated": simulated}
        context = launch.context or known.pool.max_model_len
        rows[key] = Row(launch.stack, launch.variant, launch.layout, context, known.pool, points, sources)
    return table(list(rows.values())), problems


def model_config(model: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a declared model's config.json, None where it can't be read."""
    path = Path(model["config"]) if model.get("config") else Path(model["path"])
    try:
        read = json.loads((path / "config.json" if path.is_dir() else path).read_bytes())
    except (OSError, ValueError):
        return None
    return read if isinstance(read, dict) else None


def _shown(predicted: predictions.Prediction) -> dict[str, Any]:
    """Return what plan and manifest keep of a prediction."""
    made = predicted.as_json()
    kept = {key: made[key] for key in ("pool_tokens", "bytes_per_token", "max_concurrency")}
    notes = [one.message for one in predicted.diagnostics] if predicted.pool_tokens is None else []
    return {**made["predicted"], **kept, "not_known": notes}


def _predict(recipes: Recipes, launch: Launch, config: dict[str, Any] | None) -> predictions.Prediction | None:
    layout = parse_layout(launch.layout)
    if config is None or layout.split or launch.kind not in ("vllm", "sglang"):
        return None
    gpu, flags = _gpu(recipes, launch), launch.behaviour["args"]
    return predictions.predict(config, predictions.Launch(launch.kind, launch.version or "", gpu, layout, flags))


def _pool(
    recipes: Recipes, launch: Launch, tokens: int | None, source: PoolSource,
    predicted: predictions.Prediction | None, past: Past | None, declared: Mapping[str, Any],
) -> KvPool:  # fmt: skip
    concurrency, context = None, launch.context
    if source == "history" and past is not None:
        concurrency, context = past.concurrency, past.max_model_len or context
    elif source == "predicted" and predicted is not None:
        concurrency, context = predicted.concurrency, predicted.max_model_len or context
    cost: Cost | None = past.law if past else None
    if cost is None and predicted is not None:
        cost = predicted.cost
    cap, cap_source = launch.cap, launch.cap_source
    if declared.get("sequences"):
        cap, cap_source = declared["sequences"], "declared"
    elif cap is None and past is not None and past.cap is not None:
        cap, cap_source = past.cap, "history"
    elif cap is None and not parse_layout(launch.layout).split:
        gpu, flags = _gpu(recipes, launch), launch.behaviour["args"]
        found = sequence_cap(launch.kind, launch.version or "", gpu, parse_layout(launch.layout), flags,
                             pool_tokens=tokens, context=context)  # fmt: skip
        cap, cap_source = found if found[0] is not None else (cap, cap_source)
    certain = source != "history" or bool(past and past.exact)
    return KvPool(tokens, source, launch.engines, cap, cap_source, concurrency, context, cost, certain)


def _gpu(recipes: Recipes, launch: Launch) -> str:
    """Return the GPU of the launch's node (the first one before it is placed) with its nominal size, as a name."""
    nodes = recipes.data["nodes"]
    node = nodes.get(launch.placement.node) if launch.placement else next(iter(nodes.values()), None)
    return "" if node is None else f"{node['gpu']['model']} {node['gpu']['memory']:g}GB"


def _wishes(recipes: Recipes, cell: Cell) -> None:
    """Set what the cell's experiments want of its capacity: the most lenient of them counts."""
    wanting = {name: recipes.data["experiments"][name] for name in cell.experiments}
    cell.blocks = all(one.get("on_capacity") == "block" for one in wanting.values())
    if all(one.get("requires") for one in wanting.values()):
        cell.requires = [{"experiment": name, **one["requires"]} for name, one in wanting.items()]


def _judge(cell: Cell, pool: KvPool, again: bool) -> None:
    found = pool.at(cell.length)
    cell.limited = limited(found, cell.users)
    cell.fits = fit_json(found, cell.limited)
    if pool.cost is not None:
        cell.fits["takes"] = round(pool.cost.tokens(cell.length), 1)
    reason = unmet(pool, cell.requires)
    if not reason and cell.limited and cell.blocks:
        reason = f"{cell.users} users, but only {found.effective} fit ({why(found)})"
    if reason and pool.certain and not (again and pool.source == "history"):
        cell.action, cell.reason = "!", f"blocked: capacity: {reason}"


def _settle(launch: Launch, before: int) -> None:
    """Derive the launch's action again after some of its `before` cells to measure were blocked."""
    left = sum(cell.action in ("+", "~") for cell in launch.cells)
    if left == before:
        return
    if left:
        if launch.action == "+":
            launch.reason = f"{left} of {len(launch.cells)} cells to measure"
    elif all(cell.action == "!" for cell in launch.cells):
        launch.action, launch.reason = "!", next(cell.reason for cell in launch.cells)
    else:
        launch.action, launch.reason = "=", "every cell is recorded or blocked"
