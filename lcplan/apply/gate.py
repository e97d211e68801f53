"""What the engine really holds against what the cells need: read after launch, before anything is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lcplan.base.diagnostics import Diagnostic, warning
from lcplan.capacity.agree import TOLERANCE, disagreements
from lcplan.capacity.fit import Fit, Law
from lcplan.capacity.pool import KvPool, fit_json, known_law, limited, unmet, why
from lcplan.plan.model import Cell, Launch


@dataclass(frozen=True)
class Capacity:
    """The engine's capacity as read after launch: the least of log and metrics, and what does not agree."""

    pool: KvPool
    warnings: tuple[Diagnostic, ...] = ()

    @property
    def engines(self) -> int:
        """Engine ranks."""
        return self.pool.engines

    def as_json(self) -> dict[str, Any]:
        """Return the shape the manifest keeps; the pool is that of one engine rank."""
        return {
            "pool_tokens": self.pool.tokens,
            "pool_source": self.pool.source,
            "engines": self.pool.engines,
            "concurrency": self.pool.concurrency,
            "max_model_len": self.pool.max_model_len,
            "cap": self.pool.cap,
            "cap_source": self.pool.cap_source,
            "warnings": [one.message for one in self.warnings],
        }


def read(launch: Launch, facts: Any, metrics: Any) -> Capacity:
    """Return the capacity of a launch from its log's facts and its metrics page (either may be None).

    An engine that tells neither has what its stack declares. The plan's prediction and history are compared with it.
    """
    logged = [int(n) for n in (facts.kv_tokens if facts else ())]
    pools = ([min(logged)] if logged else []) + ([metrics.pool_tokens] if metrics else [])
    printed = list(facts.max_concurrency) if facts else []
    ranks = max(len(logged), metrics.engines if metrics else 0)
    served_cap = facts.max_num_seqs if facts else None
    cap, cap_source = (served_cap, "logged") if served_cap else (launch.cap, launch.cap_source)
    declared = launch.capacity.get("declared")
    pool = KvPool(
        min(pools) if pools else declared,
        "logged" if pools else "declared" if declared else "unknown",
        ranks or launch.engines,
        cap,
        cap_source,
        min(printed) if printed else (metrics.concurrency if metrics else None),
        (facts.max_model_len if facts else None) or launch.context,
        known_law(launch.capacity.get("history")),
    )
    return Capacity(pool, tuple(_warnings(launch, pool, pools, ranks)))


def too_small(capacity: Capacity) -> str:
    """Return why the engine can't serve its own context although it is ready, "" when it can."""
    pool = capacity.pool
    if pool.source != "logged" or pool.tokens is None or pool.max_model_len is None:
        return ""
    if pool.tokens >= pool.max_model_len:
        return ""
    return (
        f"the server is ready, but its pool of {pool.tokens:,} tokens holds no request of the context of "
        f"{pool.max_model_len:,} tokens"
    )


def fits(cell: Cell, capacity: Capacity) -> Fit:
    """Return how many of the cell's sequences the engine holds at once.

    Without a measured law, what the plan expects a sequence to take counts, where it could predict that.
    """
    takes = (cell.fits or {}).get("takes")
    return capacity.pool.at(cell.length, None if capacity.pool.cost or not takes else Law(float(takes), 0.0))


def verdict(cell: Cell, found: Fit, capacity: Capacity) -> tuple[str | None, bool | None]:
    """Return (reason why the cell is blocked, or None; whether it is capacity-limited, None when nothing tells)."""
    over = limited(found, cell.users)
    if found.fits == 0:
        return f"one sequence of {cell.length:,} tokens does not fit ({why(found)})", True
    reason = unmet(capacity.pool, cell.requires)
    if not reason and over and cell.blocks:
        reason = f"{cell.users} users, but only {found.effective} fit ({why(found)})"
    return reason or None, over


def mark(found: Fit, over: bool | None) -> dict[str, Any]:
    """Return what the manifest keeps with a cell; the pool stands once for the run."""
    shown = fit_json(found, over)
    return {key: shown[key] for key in ("fits", "cap", "effective", "limit", "limited", "by")}


def law(launch: Launch, capacity: Capacity | None, results: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the law `a + b * length` of a run's KV usage readings with the readings themselves; None without any.

    It holds for one model, engine version, layout and max-model-len. One reading is kept per length, the fullest. Not
    counted are readings with requests that waited, and such that show less than the sequence's own length: a pool is
    expressed in tokens of the longest request, so those were taken before the sequence was whole. Of several ranks the
    gauge is the fullest one's, whose share of the users is not known: there only a lone user counts.
    """
    from lcplan.capacity.fit import Sample, fit_law

    tokens = capacity.pool.tokens if capacity is not None and capacity.pool.source == "logged" else None
    if tokens is None or capacity is None:
        return None
    best: dict[float, Sample] = {}
    for row in (row for result in results for row in result.get("rows", ())):
        users, usage = row.get("users"), (row.get("kv_usage_percent") or 0) / 100
        length = (row.get("prompt_tokens") or 0) + (row.get("output_tokens") or 0)
        if not users or not length or row.get("queued") or row.get("status") != "done":
            continue
        whole = usage * tokens / users >= (1 - _EARLY) * length
        if whole and (users == 1 or capacity.engines == 1):
            made = Sample(users, length, usage, tokens)
            if length not in best or best[length].usage / best[length].sequences < usage / users:
                best[length] = made
    found = fit_law(best.values(), capacity.pool.max_model_len)
    if found is None:
        return None
    samples = [{"sequences": s.sequences, "length": s.length, "usage": s.usage, "pool_tokens": s.pool_tokens}
               for _, s in sorted(best.items())]  # fmt: skip
    return {
        "a": round(found.a, 3),
        "b": round(found.b, 6),
        "model": launch.model,
        "engine_version": launch.version,
        "layout": launch.layout,
        "max_model_len": capacity.pool.max_model_len,
        "samples": samples,
    }


_EARLY = 0.05


def _warnings(launch: Launch, pool: KvPool, pools: Sequence[int], ranks: int) -> list[Diagnostic]:
    found = []
    if len(pools) == 2 and abs(pools[0] - pools[1]) > TOLERANCE * max(pools):
        found.append(warning("pool-log-metrics", f"the log says {pools[0]:,} tokens, /metrics says {pools[1]:,}"))
    if ranks and ranks != launch.engines:
        found.append(warning("ranks-differ", f"{ranks} engine ranks answered, the layout has {launch.engines}"))
    if pool.tokens is not None and pool.source == "logged":
        predicted = (launch.capacity.get("predicted") or {}).get("pool_tokens")
        history = launch.capacity.get("history") or {}
        found += disagreements(pool.tokens, predicted, history["pools"] if history.get("exact") else ())
    return found
