"""Student's t: intervals for the mean of a few runs.

The quantiles are those of the two-sided 95 % interval, NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2:
https://www.itl.nist.gov/div898/handbook/eda/section3/eda3672.htm
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, variance

_T975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def quantile(freedom: float) -> float:
    """Return the 97.5 % quantile for degrees of freedom from 1 on, never less than the exact one.

    Fractions are rounded down, and above 30 the last value of the table stays.
    """
    return _T975[min(max(math.floor(freedom), 1), len(_T975)) - 1]


def half_width(sample: Sequence[float]) -> float | None:
    """Return half the width of the 95 % interval of a mean, None for less than two values."""
    if len(sample) < 2:
        return None
    return quantile(len(sample) - 1) * math.sqrt(variance(sample) / len(sample))


def half_width_of_difference(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return half the width of the 95 % interval of the difference of two means (Welch), None for less than two values.

    Degrees of freedom: Welch-Satterthwaite, B. L. Welch, Biometrika 34 (1947) 28-35.
    """
    if len(a) < 2 or len(b) < 2:
        return None
    parts = [variance(one) / len(one) for one in (a, b)]
    whole = sum(parts)
    if not whole:
        return 0.0
    freedom = whole**2 / sum(part**2 / (len(one) - 1) for part, one in zip(parts, (a, b), strict=True))
    return quantile(freedom) * math.sqrt(whole)


def relative_noise(groups: Sequence[Sequence[float]]) -> tuple[float, int] | None:
    """Return the relative standard deviation of repeated identical cells, pooled, and its degrees of freedom.

    `groups` holds the values of one cell each. None without a group of two values or more whose mean is not 0.
    """
    squares, freedom = 0.0, 0
    for group in groups:
        middle = fmean(group) if group else 0.0
        if len(group) > 1 and middle:
            squares += sum((value / middle - 1.0) ** 2 for value in group)
            freedom += len(group) - 1
    return (math.sqrt(squares / freedom), freedom) if freedom else None
