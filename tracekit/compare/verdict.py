"""PASS, FAIL or UNDECIDED: an estimate held against the most that a metric may get worse."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tracekit.compare.estimate import Estimate, NoEstimate
from tracekit.compare.student import t_quantile
from tracekit.errors import BadInput

# One-sided error of either verdict: the nominal 90 % interval, two-sided.
ALPHA = 0.05
# Beyond this many times the slots there were, more of them are no advice.
_MOST_TIMES = 10


class Verdict(StrEnum):
    """What the data say about a limit."""

    PASS = "PASS"
    FAIL = "FAIL"
    UNDECIDED = "UNDECIDED"


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that a metric may change for the worse.

    Attributes:
        max_change: Share of the base (0.02: two per cent), or a difference where the estimate is
            one. At most 0 to demand that it got better.
        is_better: `lower`, `higher`, or None if a change either way is for the worse.
    """

    max_change: float
    is_better: str | None

    def __post_init__(self) -> None:
        if self.is_better not in ("lower", "higher", None):
            raise BadInput("limit", f"{self.is_better!r} is no direction", "Give lower or higher")
        if not math.isfinite(self.max_change):
            raise BadInput("limit", f"{self.max_change} is no limit", "Give a share such as 0.02")
        if self.is_better is None and self.max_change < 0:
            problem = f"{self.max_change:g} either way leaves nothing"
            raise BadInput("limit", problem, "Give 0 or more, or say what is better")


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict and why.

    Attributes:
        verdict: What it is.
        reason: One sentence.
        slots: Slots in all that would have decided, were the effect and the noise as estimated;
            None if it is decided, or more slots would not help or be too many.
    """

    verdict: Verdict
    reason: str
    slots: int | None = None


def decide(
    found: Estimate | NoEstimate,
    limit: Limit,
    *,
    num_metrics: int = 1,
    alpha: float = ALPHA,
    block: int = 1,
) -> Decision:
    """Return the verdict on one metric of a gate.

    PASS if the whole interval of confidence 1 − 2·alpha is within the limit: a gate passes if all
    its metrics do, which needs no correction (intersection–union). FAIL if the whole interval is
    beyond the limit with the one-sided error alpha ÷ `num_metrics` (Bonferroni), so that all
    metrics of a gate together fail wrongly at most that often.

    Args:
        found: Of the metric.
        limit: Of the metric.
        num_metrics: Metrics that the gate decides on.
        alpha: One-sided error of the whole gate.
        block: Slots by which the experiment can grow.
    """
    if isinstance(found, NoEstimate):
        return Decision(Verdict.UNDECIDED, found.reason)
    if found.objections:
        return Decision(Verdict.UNDECIDED, "; ".join(found.objections))
    sides = _sides(limit, is_log=found.is_log)
    share = alpha / num_metrics / len(sides)
    for sign, most in sides:
        if _least_worse(found, sign, share) > most:
            low = found.change(sign * _least_worse(found, sign, share))
            return Decision(Verdict.FAIL, f"changed by {_text(low, found)} or more")
    low, high = found.interval(1 - 2 * alpha)
    between = f"between {_text(found.change(low), found)} and {_text(found.change(high), found)}"
    if all(max(sign * low, sign * high) < most for sign, most in sides):
        return Decision(Verdict.PASS, f"changed {between}")
    slots = _slots(found, sides, alpha, share, block)
    return Decision(Verdict.UNDECIDED, f"changed {between}, on both sides of the limit", slots)


def decide_exact(base: Sequence[float], head: Sequence[float], limit: Limit) -> Decision:
    """Return the verdict on a metric that is the same at every start: a count, a number of bytes.

    One start a side is enough. `max_change` is a share of the base. Values that differ between
    starts of one arm are not exact, and undecided.
    """
    if not base or not head or not all(map(math.isfinite, (*base, *head))):
        return Decision(Verdict.UNDECIDED, "a value is missing or not a finite number")
    for name, values in (("base", base), ("head", head)):
        if len({*values}) > 1:
            spread = f"from {min(values):g} to {max(values):g}"
            return Decision(Verdict.UNDECIDED, f"not exact: starts of {name} differ, {spread}")
    was, became = base[0], head[0]
    change = became - was
    room = limit.max_change * abs(was)
    worse = {"lower": change, "higher": -change, None: abs(change)}[limit.is_better]
    verdict = Verdict.PASS if worse <= room else Verdict.FAIL
    return Decision(verdict, f"{was:g} → {became:g}, exact")


def _sides(limit: Limit, *, is_log: bool) -> list[tuple[int, float]]:
    """Return, for each direction that is worse, its sign and the most it may be as an effect."""
    sides = {"lower": [1], "higher": [-1], None: [1, -1]}[limit.is_better]
    return [(sign, sign * _effect(sign * limit.max_change, is_log=is_log)) for sign in sides]


def _effect(change: float, *, is_log: bool) -> float:
    """Return the effect of a change; a fall by all or more is one that nothing reaches."""
    if not is_log:
        return change
    return math.log1p(change) if change > -1 else -math.inf


def _least_worse(found: Estimate, sign: int, error: float) -> float:
    """Return how much worse it got at least, with the one-sided error."""
    return sign * found.bound(error if sign > 0 else 1 - error)


def _slots(
    found: Estimate, sides: list[tuple[int, float]], alpha: float, share: float, block: int
) -> int | None:
    """Return the slots with which the same effect would have been decided.

    The half-width shrinks with the root of the slots and with Student's quantile; what more slots
    gain against drift is not counted, so they may be more than it takes.
    """
    distance = max(sign * found.effect - most for sign, most in sides)
    error = share if distance > 0 else alpha
    low, high = found.bound(error), found.bound(1 - error)
    unit = (high - low) / 2 / t_quantile(1 - error, found.df) * math.sqrt(found.num_slots)
    terms = found.num_slots - found.df

    def is_enough(slots: int) -> bool:
        return t_quantile(1 - error, slots - terms) * unit / math.sqrt(slots) < abs(distance)

    more = range(found.num_slots + block, _MOST_TIMES * found.num_slots + 1, block)
    place = bisect_left(more, True, key=is_enough)
    return more[place] if place < len(more) else None


def _text(change: float, found: Estimate) -> str:
    return f"{change:+.2%}" if found.is_log else f"{change:+.4g}"
