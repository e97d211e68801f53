"""What the engine really holds against what the cells need: read after launch, before anything is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lcplan.capacity.fit import Fit, fit
from lcplan.plan.model import Cell, Launch

DISAGREE = 0.10


@dataclass(frozen=True)
class Capacity:
    """The engine's capacity as read after launch. `pool_tokens` is per engine rank, the least of log and metrics."""

    pool_tokens: int | None
    engines: int
    concurrency: float | None
    max_model_len: int | None
    cap: int | None
    cap_source: str
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the shape the manifest keeps."""
        return {
            "pool_tokens": self.pool_tokens,
            "engines": self.engines,
            "concurrency": self.concurrency,
            "max_model_len": self.max_model_len,
            "cap": self.cap,
            "cap_source": self.cap_source,
            "warnings": list(self.warnings),
        }


def read(launch: Launch, facts: Any, metrics: Any) -> Capacity:
    """Return the capacity of a launch from its log's facts and its metrics page (either may be None)."""
    logged = [int(n) for n in (facts.kv_tokens if facts else ())]
    pools = ([min(logged)] if logged else []) + ([metrics.pool_tokens] if metrics else [])
    printed = list(facts.max_concurrency) if facts else []
    warnings = []
    if len(pools) == 2 and abs(pools[0] - pools[1]) > DISAGREE * max(pools):
        warnings.append(f"the log says {pools[0]:,} tokens, /metrics says {pools[1]:,}")
    ranks = max(len(logged), metrics.engines if metrics else 0)
    if ranks and ranks != launch.engines:
        warnings.append(f"{ranks} engine ranks answered, the layout has {launch.engines}")
    served_cap = facts.max_num_seqs if facts else None
    cap, source = (served_cap, "logged") if served_cap else (launch.cap, launch.cap_source)
    return Capacity(
        min(pools) if pools else None,
        ranks or launch.engines,
        min(printed) if printed else (metrics.concurrency if metrics else None),
        (facts.max_model_len if facts else None) or launch.context,
        cap,
        source,
        tuple(warnings),
    )


def fits(cell: Cell, capacity: Capacity) -> Fit:
    """Return how many of the cell's sequences the engine holds at once."""
    return fit(
        capacity.pool_tokens,
        capacity.engines,
        cell.length,
        capacity.cap,
        printed_concurrency=capacity.concurrency,
        max_model_len=capacity.max_model_len,
        pool_source="logged" if capacity.pool_tokens is not None else "unknown",
        cap_source=capacity.cap_source,
    )


def verdict(cell: Cell, found: Fit) -> tuple[str | None, bool]:
    """Return (reason why the cell is blocked, or None; whether it is capacity-limited)."""
    if found.fits == 0:
        return f"one sequence of {cell.length:,} tokens does not fit the pool of {found.pool_tokens:,}", True
    limited = found.limited(cell.users)
    if limited and cell.blocks:
        return f"{cell.users} users, but only {found.effective} fit ({found.limit})", True
    return None, limited
