"""Student's t with whole degrees of freedom, and weighted mixtures of such distributions.

SciPy would bring 140 MB for these two functions.
"""

import math
from dataclasses import dataclass

import numpy as np

_HALVINGS = 50


def t_cdf(t: np.ndarray, df: int) -> np.ndarray:
    """Return the distribution function of Student's t, exact up to rounding.

    The finite series for whole degrees of freedom: Abramowitz and Stegun 26.7.3 and 26.7.4. Tails
    below 1e-15 are lost to rounding.
    """
    angle = np.arctan(t / math.sqrt(df))
    cosine, sine = np.cos(angle), np.sin(angle)
    term = cosine.copy() if df % 2 else np.ones_like(angle)
    total = np.zeros_like(angle)
    for k in range(2 + df % 2, df + 1, 2):
        total += term
        term = term * cosine**2 * (k - 1) / k
    central = (angle + sine * total) * 2 / math.pi if df % 2 else sine * total
    return (1 + central) / 2


def t_quantile(probability: float, df: int) -> float:
    """Return the t below which a share of the distribution lies, by halving the angle."""
    low, high = -math.pi / 2, math.pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        below = t_cdf(np.array(math.tan(middle) * math.sqrt(df)), df)
        low, high = (middle, high) if below < probability else (low, middle)
    return math.tan((low + high) / 2) * math.sqrt(df)


@dataclass(frozen=True, slots=True)
class Mixture:
    """Rows of weighted Student distributions, each moved and scaled.

    Attributes:
        weights: `[rows, parts]`, each row adds up to 1.
        centers: `[rows, parts]`.
        scales: `[rows, parts]`, none 0.
        df: Degrees of freedom of all.
    """

    weights: np.ndarray
    centers: np.ndarray
    scales: np.ndarray
    df: int

    def cdf(self, values: np.ndarray) -> np.ndarray:
        """Return the share of each row below its value, `[rows]`."""
        parts = t_cdf((values[:, None] - self.centers) / self.scales, self.df)
        return np.asarray((self.weights * parts).sum(1))

    def quantile(self, probability: float) -> np.ndarray:
        """Return the value below which a share of each row lies, `[rows]`.

        It lies between the smallest and the largest such value of the parts; halved 50 times.
        """
        of_parts = self.centers + t_quantile(probability, self.df) * self.scales
        low, high = of_parts.min(1), of_parts.max(1)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            below = self.cdf(middle) < probability
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return np.asarray((low + high) / 2)
