"""Figures from samples, and no figure that the sample cannot carry."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Metric = dict[str, Any]
_P90_FROM = 10
_P99_FROM = 100
_UNITS: Mapping[str, str] = {  # the longest ending that fits is the unit
    "_tokens_per_s": "tokens/s",
    "requests_per_s": "requests/s",
    "_percent": "%",
    "_tokens": "tokens",
    "_ms": "ms",
    "_s": "s",
    "_found": "needles",
    "_asked": "needles",
    "completed": "requests",
    "sent": "requests",
}


def metric(name: str, values: Iterable[float | None]) -> Metric | None:
    """Return the figures of a metric: value (the median), unit, n, median, min, max; None without a sample.

    No p99 under 100 samples and no p90 under 10: there every value is listed instead.
    """
    sample = sorted(v for v in values if v is not None and math.isfinite(v))
    if not sample:
        return None
    middle = quantile(sample, 0.5)
    figures: Metric = {"value": middle, "unit": unit(name), "n": len(sample), "median": middle}
    figures |= {"min": sample[0], "max": sample[-1]}
    if len(sample) < _P90_FROM:
        figures["values"] = sample
    else:
        figures["p90"] = quantile(sample, 0.9)
    if len(sample) >= _P99_FROM:
        figures["p99"] = quantile(sample, 0.99)
    return figures


def metrics(samples: Mapping[str, Iterable[float | None]]) -> dict[str, Metric]:
    """Return the metrics of named samples, those without any value left out."""
    named = ((name, metric(name, values)) for name, values in samples.items())
    return {name: figures for name, figures in named if figures is not None}


def unit(name: str) -> str:
    """Return the unit that a metric's name ends in, "" when it ends in none."""
    endings = [ending for ending in _UNITS if name.endswith(ending)]
    return _UNITS[max(endings, key=len)] if endings else ""


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of an ordered sample, linear between neighbours (Hyndman and Fan, type 7)."""
    at = (len(ordered) - 1) * share
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of what is not None, or None."""
    sample = sorted(v for v in values if v is not None)
    return quantile(sample, 0.5) if sample else None
