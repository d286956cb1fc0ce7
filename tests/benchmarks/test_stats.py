# SPDX-License-Identifier: Apache-2.0
import math
import random

import pytest

from benchmarks.stats import Interval, mean_interval, ratio_interval, t95


@pytest.mark.parametrize(
    ("degrees", "quantile"), [(1, 12.7062), (4, 2.7764), (8, 2.3060), (30, 2.0423), (31, 2.0395), (60, 2.0003)]
)
def test_quantiles_are_those_of_the_tables(degrees, quantile):
    assert t95(degrees) == pytest.approx(quantile, abs=6e-4)


def test_no_quantile_without_a_degree_of_freedom():
    with pytest.raises(ValueError, match="degree of freedom"):
        t95(0)


def test_interval_of_a_known_sample():
    # Mean 5, standard deviation sqrt(2.5), five values: half width 2.7764 * sqrt(2.5 / 5).
    interval = mean_interval([3, 4, 5, 6, 7])
    assert interval.mean == 5
    assert interval.high - 5 == pytest.approx(2.776 * math.sqrt(0.5), rel=1e-4)
    assert 5 - interval.low == pytest.approx(interval.high - 5)


def test_ratios_of_equal_distance_cancel():
    interval = ratio_interval([0.5, 2, 0.5, 2, 0.5, 2])
    assert interval.mean == pytest.approx(1)
    assert interval.low * interval.high == pytest.approx(1)


def test_equal_values_are_exact_and_a_single_one_says_nothing():
    assert mean_interval([0.1] * 7) == Interval(0.1, 0.1, 0.1)
    assert mean_interval([0.1]).high == math.inf
    assert ratio_interval([3]).high == math.inf


def test_a_ratio_is_above_zero():
    with pytest.raises(ValueError, match="above 0"):
        ratio_interval([1, 0])


def test_the_interval_covers_the_truth_19_times_of_20():
    random.seed(1)
    covered = 0
    for _ in range(2000):
        interval = ratio_interval([math.exp(random.gauss(0.1, 0.05)) for _ in range(7)])
        covered += interval.low <= math.exp(0.1) <= interval.high
    assert 0.93 <= covered / 2000 <= 0.97
