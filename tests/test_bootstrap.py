"""The interval of a median, against order statistics and plain loops."""

import random
from statistics import median

import numpy as np
import pytest

from tracekit.bootstrap import MIN_VALUES, median_interval


def test_fewer_values_than_the_minimum_have_no_interval():
    assert median_interval(np.arange(MIN_VALUES - 1)) is None
    assert median_interval(np.arange(MIN_VALUES)) is not None


def test_equal_values_are_known_exactly_and_the_same_values_give_the_same_interval():
    assert median_interval(np.full(50, 7)) == (7.0, 7.0)
    values = np.arange(100) % 17
    assert median_interval(values) == median_interval(values)


def test_independent_values_have_the_interval_that_order_statistics_give():
    # Of 400 values the median lies between the 181st and the 220th with 95 % (binomial, exact).
    values = random.Random(1).sample(range(10_000), 400)
    ordered = sorted(values)
    low, high = median_interval(np.array(values))
    assert low == pytest.approx(ordered[180], abs=250)
    assert high == pytest.approx(ordered[219], abs=250)


def test_neighbours_that_are_alike_are_drawn_together_as_by_plain_loops():
    # 216 values in runs of 24 that are alike: a bootstrap of single values would be too narrow.
    rng = random.Random(2)
    values = [rng.gauss(0, 1) for _ in range(9)]
    values = [level + rng.gauss(0, 0.1) for level in values for _ in range(24)]
    medians = []
    for _ in range(1000):
        drawn = []
        while len(drawn) < len(values):
            first = rng.randrange(len(values))
            drawn += [values[(first + i) % len(values)] for i in range(6)]
        medians.append(median(drawn[: len(values)]))
    medians.sort()
    low, high = median_interval(np.array(values))
    width = medians[974] - medians[25]
    assert low == pytest.approx(medians[25], abs=0.15 * width)
    assert high == pytest.approx(medians[974], abs=0.15 * width)
    singles = sorted(median(rng.choices(values, k=len(values))) for _ in range(1000))
    assert high - low > 1.3 * (singles[974] - singles[25])


def test_many_values_are_drawn_in_parts_of_bounded_size(monkeypatch):
    values = np.arange(1000) % 31
    whole = median_interval(values)
    monkeypatch.setattr("tracekit.bootstrap._DRAWN_AT_ONCE", 7_500)
    low, high = median_interval(values)
    assert (low, high) == pytest.approx(whole, abs=1)
