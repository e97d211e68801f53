"""Which pool counts before launch, and whether prediction, log and history agree after it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from lcplan.base.diagnostics import Diagnostic, warning
from lcplan.capacity.fit import PoolSource

TOLERANCE = 0.10


def best_known(
    predicted: int | None, history: Sequence[int] = (), declared: int | None = None
) -> tuple[int | None, PoolSource]:
    """Return the pool of one engine rank that a plan should use, and where it comes from.

    What the engine printed for the same stack counts most (the median over its runs), then what the recipe declares,
    then the prediction.
    """
    if history:
        return int(statistics.median_low(history)), "history"
    if declared is not None:
        return declared, "declared"
    return predicted, "predicted" if predicted is not None else "unknown"


def disagreements(logged: int, predicted: int | None, history: Sequence[int] = ()) -> list[Diagnostic]:
    """Return warnings where the printed pool is more than 10 % from the prediction, or below the same recipe's history.

    Two servers that start at once can mis-measure memory, which shows as a pool smaller than before.
    """
    found = []
    if predicted and abs(logged / predicted - 1) > TOLERANCE:
        message = (
            f"the engine's pool of {logged:,} tokens is {logged / predicted - 1:+.0%} from the predicted {predicted:,}"
        )
        found.append(warning("pool-off-prediction", message, "see docs/capacity.md for what the prediction knows"))
    if history and logged < (1 - TOLERANCE) * (before := statistics.median_low(history)):
        message = (
            f"the engine's pool of {logged:,} tokens is {logged / before - 1:+.0%} from {before:,} of earlier runs"
        )
        found.append(
            warning("pool-below-history", message, "another process may have held GPU memory during the start")
        )
    return found
