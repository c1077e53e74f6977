"""An interval around a median, by a block bootstrap: for figures that recur once a cycle."""

import numpy as np

RESAMPLES = 1_000
# Of less than this many, resamples are too few different ones to say anything.
MIN_VALUES = 8
# Per cent, two-sided.
CONFIDENCE = 95

_SEED = 20_250_101
# Values drawn at once, so that memory is bounded however many there are.
_DRAWN_AT_ONCE = 4_000_000


def median_interval(values: np.ndarray) -> tuple[float, float] | None:
    """Return a 95 % interval of the median of values in order of time; None below `MIN_VALUES`.

    Cycles near each other are alike, so blocks of neighbours are drawn, of n^(1/3) values, from a
    circle that joins the last value to the first (Politis and Romano 1992); the interval is from
    the 2.5 % to the 97.5 % quantile of the medians of 1000 resamples. The seed is fixed: the same
    values give the same interval. It says how well this one recording knows its median, nothing of
    how another run would differ.

    Cost: 1000 draws per value.
    """
    count = len(values)
    if count < MIN_VALUES:
        return None
    random = np.random.default_rng(_SEED)
    length = round(count ** (1 / 3))
    blocks = -(-count // length)
    at_once = max(1, _DRAWN_AT_ONCE // count)
    medians = []
    for first in range(0, RESAMPLES, at_once):
        size = (min(at_once, RESAMPLES - first), blocks, 1)
        drawn = random.integers(0, count, size) + np.arange(length)
        places = drawn.reshape(size[0], -1)[:, :count] % count
        medians.append(np.median(values[places], axis=1))
    tail = (100 - CONFIDENCE) / 2
    low, high = np.percentile(np.concatenate(medians), [tail, 100 - tail])
    return float(low), float(high)
