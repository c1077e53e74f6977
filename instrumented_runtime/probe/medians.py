"""Medians of samples, their intervals, and what an interval decides."""

from collections.abc import Iterable
from math import comb
from statistics import median

import numpy as np
from numpy.typing import NDArray

from instrumented_runtime.probe import Answer, Figure, Unit

LEVEL = 0.95
METHOD = (
    "distribution-free interval of the median between two order statistics of the repetitions, "
    f"of at least {100 * LEVEL:g} %"
)
Samples = NDArray[np.int64] | NDArray[np.float64]


def median_ranks(n: int) -> tuple[int, int] | None:
    """Return the ranks, from 1, of the samples between which the median lies at `LEVEL`.

    Of n independent samples the j-th smallest is above the median of their distribution with the
    probability that fewer than j of n fair coins show heads, whatever the distribution; the j-th
    largest likewise. The largest j is taken that leaves at most 1 − `LEVEL` outside.

    Returns:
        j and n + 1 − j; None where even all samples are too few, which are fewer than six.
    """
    outside = 0.0
    rank = 0
    while 2 * (outside + comb(n, rank) / 2**n) <= 1 - LEVEL:
        outside += comb(n, rank) / 2**n
        rank += 1
    return (rank, n + 1 - rank) if rank else None


def summary(name: str, what: str, unit: Unit, samples: Samples | Iterable[float]) -> Figure:
    """Return median and interval of samples; those that are not finite were not valid."""
    values = sorted(float(sample) for sample in samples if np.isfinite(sample))
    ranks = median_ranks(len(values))
    low, high = (values[ranks[0] - 1], values[ranks[1] - 1]) if ranks else (None, None)
    middle = median(values) if values else None
    return Figure(name, what, unit, middle, low, high, len(values))


def is_above(figure: Figure, limit: float) -> Answer:
    """Whether the median is above a limit; undecided where its interval holds that."""
    if figure.low is None or figure.high is None or figure.low <= limit <= figure.high:
        return "undecided"
    return "yes" if figure.low > limit else "no"
