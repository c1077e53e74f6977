"""Whether the machine changed during an experiment, and whether a server minds what ran before it.

Reported, and no part of any verdict: the estimate allows for drift whether or not it shows, since
to choose the model by a test would make its interval too narrow.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.compare.estimate import NO_CURVE, Estimate, TimeModel

# A note is worth reading from here on.
_NOTABLE_P = 0.05
_NOTABLE_ODDS = 10


@dataclass(frozen=True, slots=True)
class TimeEffects:
    """What time and order did to one metric.

    Attributes:
        drift: Effect of the straight line from the first slot to the last.
        drift_p: Of no line, by least squares: beside a curve it says little.
        curve_odds: How many times as likely the values are with a curve beside the line as without.
        carry_over: Effect on a slot of following one of the head; None if the order cannot tell.
        carry_over_p: Of none; None likewise.
    """

    drift: float
    drift_p: float
    curve_odds: float
    carry_over: float | None
    carry_over_p: float | None


def time_effects(
    values: Sequence[float],
    arms: Sequence[str],
    positions: Sequence[float],
    found: Estimate,
    head: str,
) -> TimeEffects:
    """Return what time did to values of which there is an estimate.

    Args:
        values: As given to `estimate`, like `arms` and `positions`.
        arms: Arm of each slot.
        positions: Place of each slot.
        found: The estimate of them.
        head: The arm in question.
    """
    row = np.array([values], dtype=float)
    scaled = np.log(row) if found.is_log else row
    places = np.array(positions, dtype=float)
    names = list(dict.fromkeys(arms))[1:]
    columns = np.array([[float(arm == name) for arm in arms] for name in names]).T
    line = TimeModel(columns, places, target=len(names) + 1).straight(scaled)
    no_curve = max(float(found.distribution.weights[0, 0]), np.finfo(float).tiny)
    carry = _carry_over(scaled, columns, places, np.array([arm == head for arm in arms]))
    return TimeEffects(
        float(line.centers[0, 0]),
        _p_value(float(line.cdf(np.zeros(1))[0])),
        (1 - no_curve) / no_curve * NO_CURVE / (1 - NO_CURVE),
        *carry,
    )


def _carry_over(
    scaled: np.ndarray, columns: np.ndarray, places: np.ndarray, is_head: np.ndarray
) -> tuple[float, float] | tuple[None, None]:
    """Return effect and p of the slot before, over all slots but the first."""
    order = np.argsort(places)
    after = np.empty(len(places))
    after[order[1:]] = is_head[order[:-1]]
    rest = np.sort(order[1:])
    try:
        model = TimeModel(np.column_stack([after, columns])[rest], places[rest])
    except np.linalg.LinAlgError:
        return None, None
    if model.df < 1:
        return None, None
    found = model.fit(scaled[:, rest])
    return float(found.quantile(0.5)[0]), _p_value(float(found.cdf(np.zeros(1))[0]))


def _p_value(below: float) -> float:
    return 2 * min(below, 1 - below)


def notes(effects: TimeEffects, found: Estimate) -> Iterator[str]:
    """Yield a sentence for what is worth reading."""
    if effects.drift_p < _NOTABLE_P:
        change = _text(effects.drift, found)
        yield f"drift: {change} from the first slot to the last (p = {effects.drift_p:.2g})"
    if effects.curve_odds >= _NOTABLE_ODDS:
        odds = f"{effects.curve_odds:.0f}" if effects.curve_odds < 1e4 else "over 10000"
        yield f"the slots follow no straight line: a curve is {odds} times as likely"
    if effects.carry_over is not None and (effects.carry_over_p or 0) < _NOTABLE_P:
        change = _text(effects.carry_over, found)
        yield f"order: {change} after a slot of the head (p = {effects.carry_over_p:.2g})"


def _text(effect: float, found: Estimate) -> str:
    change = found.change(effect)
    return f"{change:+.2%}" if found.is_log else f"{change:+.4g}"
