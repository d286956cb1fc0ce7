# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of a verdict: t intervals, and what they say about a limit.

A ratio is judged by the t interval of the mean of its logarithm (so that 0.5 and 2 lie equally far from 1), a
difference or a plain figure by the t interval of its mean. Nothing here knows what was measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Two-sided 95 % quantiles of Student's t, by degrees of freedom 1..30.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_Z95 = 1.959964


def t95(degrees: int) -> float:
    """The two-sided 95 % quantile; beyond 30 degrees Cornish-Fisher's expansion, right to 4 digits."""
    if degrees < 1:
        raise ValueError(f"a t quantile needs at least 1 degree of freedom, not {degrees}")
    if degrees <= len(_T95):
        return _T95[degrees - 1]
    z = _Z95
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float


def mean_interval(values: Sequence[float]) -> Interval:
    """The t interval of the mean. Equal values give one of no width; a single one says nothing: an infinite one."""
    if not values:
        raise ValueError("no values")
    mean = statistics.fmean(values)
    if len(values) == 1:
        return Interval(mean, -math.inf, math.inf)
    if min(values) == max(values):
        return Interval(values[0], values[0], values[0])
    half = t95(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def ratio_interval(ratios: Sequence[float]) -> Interval:
    """The t interval of the mean log ratio, given back as ratios."""
    if any(not ratio > 0 for ratio in ratios):
        raise ValueError(f"a ratio must be above 0: {min(ratios)}")
    inside = mean_interval([math.log(ratio) for ratio in ratios])
    high = math.inf if inside.high > 700 else math.exp(inside.high)
    return Interval(math.exp(inside.mean), math.exp(inside.low), high)
