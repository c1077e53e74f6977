"""How much one arm differs from another: one interval, by one estimator that was fixed beforehand.

    log value = level + effect of the arm + line in time + smooth curve in time + noise of the start

One slot is one start of a server and one value. The curve is an integrated random walk, which
makes the fit a cubic smoothing spline (Wahba 1978); how large it is beside the noise is not known,
so it is averaged over by the restricted likelihood of each ratio. `docs/statistics.md` has the
formulas, why this one, and how it fares under drift, steps, walks and none of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tracekit.compare.design import objections
from tracekit.compare.student import Mixture

# Variance of the curve over variance of the noise, each as likely as the other beforehand.
RATIOS = tuple(10 ** (step / 2) for step in range(-2, 9))
# How likely it is beforehand that there is no curve beside the line.
NO_CURVE = 0.4
ASSUMED = (
    "log-linear: arms, a line and a smooth curve in time over all slots; starts independent beside "
    "that and equally noisy in every arm"
)
# Residuals below this, on the log scale, are rounding of equal values.
_NO_NOISE = 1e-9


@dataclass(frozen=True, slots=True)
class NoEstimate:
    """There is no interval, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is known of the change from one arm to another.

    Effects are differences of logarithms, or of the values themselves if `is_log` is False;
    `change` makes shares of them.

    Attributes:
        effect: Median of the distribution of head − base.
        num_slots: Slots of all arms.
        df: Degrees of freedom of the interval: slots − arms − 2.
        num_base: Slots of the base.
        num_head: Slots of the head.
        p_value: Two-sided, of no effect; printed, decides nothing.
        objections: Why it must not decide anything; empty if it may.
        is_log: Whether effects are of logarithms.
        distribution: Of the effect, one row.
    """

    effect: float
    num_slots: int
    df: int
    num_base: int
    num_head: int
    p_value: float
    objections: tuple[str, ...]
    is_log: bool
    distribution: Mixture

    def bound(self, probability: float) -> float:
        """Return the effect that is above the true one with this probability."""
        return float(self.distribution.quantile(probability)[0])

    def interval(self, confidence: float) -> tuple[float, float]:
        """Return the two-sided interval, equal tails (`confidence` 0.9: 5 % each)."""
        tail = (1 - confidence) / 2
        return self.bound(tail), self.bound(1 - tail)

    def change(self, effect: float) -> float:
        """Return an effect as head ÷ base − 1, or unchanged if it is not of logarithms."""
        return math.expm1(effect) if self.is_log else effect


class TimeModel:
    """The model of one order of slots, ready for values: one row or thousands of them at a time."""

    def __init__(self, columns: np.ndarray, positions: np.ndarray, target: int = 0) -> None:
        """Prepare every ratio.

        Args:
            columns: `[slots, …]`, what the values may depend on beside level and line.
            positions: `[slots]`, when each slot ran, in any unit.
            target: The column whose effect is wanted.
        """
        times = (positions - positions.min()) / np.ptp(positions)
        line = np.column_stack([np.ones_like(times), times - times.mean()])
        design = np.column_stack([columns, line])
        if np.linalg.matrix_rank(design) < design.shape[1]:
            raise np.linalg.LinAlgError("columns are not independent")
        self.residual_df = len(times) - design.shape[1]
        # One is taken for the ratio, which the same values have to tell.
        self.df = self.residual_df - 1
        curve = _curve(times, line)
        self._parts = [_part(np.eye(len(times)) + r * curve, design, target) for r in (0, *RATIOS)]
        prior = np.array([NO_CURVE, *[(1 - NO_CURVE) / len(RATIOS)] * len(RATIOS)])
        self._log_prior = np.log(prior)

    def fit(self, values: np.ndarray) -> Mixture:
        """Return the distribution of the effect for each row of `values`, `[rows, slots]`."""
        centers = np.stack([values @ part.estimator for part in self._parts], 1)
        squares = np.stack([((values @ p.residuals.T) ** 2).sum(1) for p in self._parts], 1)
        squares = np.maximum(squares, np.finfo(float).tiny)
        units = np.array([part.unit_error for part in self._parts])
        log_weights = self._log_prior - np.array([part.half_log_det for part in self._parts])
        log_weights = log_weights - self.residual_df / 2 * np.log(squares)
        weights = np.exp(log_weights - log_weights.max(1, keepdims=True))
        scales = np.sqrt(squares / self.residual_df) * units
        return Mixture(weights / weights.sum(1, keepdims=True), centers, scales, self.df)

    def straight(self, values: np.ndarray) -> Mixture:
        """Return what least squares say of the effect for each row, were there no curve."""
        found = self.fit(values)
        one = slice(0, 1)
        ones = np.ones((len(values), 1))
        return Mixture(ones, found.centers[:, one], found.scales[:, one], self.residual_df)

    def noise(self, values: np.ndarray) -> np.ndarray:
        """Return the residual standard deviation of each row, were there no curve."""
        return np.asarray(self.straight(values).scales[:, 0] / self._parts[0].unit_error)


@dataclass(frozen=True, slots=True)
class _Part:
    """Generalised least squares for one ratio.

    Attributes:
        estimator: `[slots]`, its product with the values is the effect.
        residuals: `[slots, slots]`, makes whitened residuals of the values.
        unit_error: Standard error of the effect if the noise had a standard deviation of 1.
        half_log_det: What the restricted likelihood loses to the covariance.
    """

    estimator: np.ndarray
    residuals: np.ndarray
    unit_error: float
    half_log_det: float


def _part(covariance: np.ndarray, design: np.ndarray, target: int) -> _Part:
    white = np.linalg.inv(np.linalg.cholesky(covariance))
    q, r = np.linalg.qr(white @ design)
    back = np.linalg.inv(r)
    return _Part(
        (back @ q.T @ white)[target],
        white - q @ (q.T @ white),
        float(np.linalg.norm(back[target])),
        float(np.log(np.abs(np.diag(r))).sum() - np.log(np.diag(white)).sum()),
    )


def _curve(times: np.ndarray, line: np.ndarray) -> np.ndarray:
    """Return the covariance of an integrated Wiener process, of mean variance 1 beside a line."""
    early, late = np.minimum.outer(times, times), np.maximum.outer(times, times)
    covariance = early**2 * (3 * late - early) / 6
    q, _ = np.linalg.qr(line)
    beside = np.eye(len(times)) - q @ q.T
    variance = np.trace(beside @ covariance @ beside) / (len(times) - line.shape[1])
    return np.asarray(covariance / variance)


def estimate(
    values: Sequence[float],
    arms: Sequence[str],
    base: str,
    head: str,
    *,
    positions: Sequence[float] | None = None,
    is_log: bool = True,
) -> Estimate | NoEstimate:
    """Return the change from `base` to `head`.

    Slots of other arms help to tell time and noise. An excluded slot is left out of all three
    sequences and keeps its position, so that the others stay where they were.

    Args:
        values: One per slot.
        arms: Arm of each slot.
        base: The arm to compare with.
        head: The arm in question.
        positions: Place of each slot in the order, or when it ran; 0, 1, 2, … by default.
        is_log: False for values that may be 0, such as shares: then effects are differences.
    """
    places = tuple(float(p) for p in (range(len(values)) if positions is None else positions))
    if not len(values) == len(arms) == len(places):
        raise ValueError("values, arms and positions differ in length")
    counts = [sum(arm == name for arm in arms) for name in (base, head)]
    if problem := _unusable(values, places, counts, base, head, is_log=is_log):
        return NoEstimate(problem)
    given = np.array([values], dtype=float)
    scaled = np.log(given) if is_log else given
    try:
        model = _model(tuple(arms), places, base, head)
    except np.linalg.LinAlgError:
        return NoEstimate(f"the order does not tell {head} from a straight drift")
    found = model.fit(scaled)
    reasons = list(objections(arms, places, base, head))
    magnitude = 1.0 if is_log else float(np.abs(given).max()) or 1.0
    if steady := _steady(values, arms, (base, head)):
        reasons.append(f"every start of {steady} gave the same value, so its noise is unknown")
    elif model.noise(scaled)[0] <= _NO_NOISE * magnitude:
        reasons.append("starts do not differ beside a straight drift, so their noise is unknown")
    below = float(found.cdf(np.zeros(1))[0])
    return Estimate(
        effect=float(found.quantile(0.5)[0]),
        num_slots=len(values),
        df=model.df,
        num_base=counts[0],
        num_head=counts[1],
        p_value=2 * min(below, 1 - below),
        objections=tuple(reasons),
        is_log=is_log,
        distribution=found,
    )


def _unusable(
    values: Sequence[float],
    places: tuple[float, ...],
    counts: list[int],
    base: str,
    head: str,
    *,
    is_log: bool,
) -> str | None:
    if base == head:
        return f"{base} is on both sides"
    if min(counts) < 2:
        return f"{base} has n = {counts[0]} and {head} n = {counts[1]}: two starts each are needed"
    if not all(math.isfinite(value) for value in (*values, *places)):
        return "a value is not a finite number"
    if is_log and min(values) <= 0:
        return f"a value is {min(values):g}: a ratio needs values above 0"
    if len({*places}) < len(places):
        return "two slots are at the same position"
    return None


def _steady(values: Sequence[float], arms: Sequence[str], names: tuple[str, str]) -> str:
    """Return the arms whose starts all gave one value; empty if there is none."""
    of_arms = [{v for v, arm in zip(values, arms, strict=True) if arm == name} for name in names]
    return " and ".join(n for n, found in zip(names, of_arms, strict=True) if len(found) == 1)


@lru_cache(maxsize=64)
def _model(arms: tuple[str, ...], places: tuple[float, ...], base: str, head: str) -> TimeModel:
    """Return the model of an order; many metrics of one experiment share it."""
    others = [arm for arm in dict.fromkeys(arms) if arm not in (base, head)]
    columns = [[float(arm == name) for arm in arms] for name in (head, *others)]
    model = TimeModel(np.array(columns).T, np.array(places))
    if model.df < 1:
        raise np.linalg.LinAlgError("no degrees of freedom")
    return model
