"""Cycles that take longer under the profiler than without it: every duration is of the slower."""

from tracekit.trace import CycleTimes
from tracekit.trust import EVERY_PART, Check, Found, Touches
from tracekit.units import Unit, format_number

# Two starts of one server differ by a few percent without any profiler.
MIN_SLOWDOWN = 1.05


def slowed(cycle_times: CycleTimes | None) -> list[Found]:
    """Find a cycle that tracing lengthens by 5 % or more, where both lengths are known."""
    if cycle_times is None or cycle_times.slowdown < MIN_SLOWDOWN:
        return []
    traced, untraced = cycle_times.traced_cycle_ns, cycle_times.untraced_cycle_ns
    lengths = (format_number(ns, Unit.DURATION) for ns in (traced, untraced))
    return [
        Found(
            "a cycle takes {} under the profiler and {} without it".format(*lengths)
            + f" ({format_number(cycle_times.slowdown, Unit.RATIO)}): durations and shares are of "
            "the slower one",
            {
                "traced_cycle_ns": traced,
                "untraced_cycle_ns": untraced,
                "slowdown": cycle_times.slowdown,
            },
        )
    ]


CHECK = Check(
    code="trust-cycles.slowed-by-tracing",
    label="slower under the profiler",
    touches=Touches(units=frozenset({Unit.DURATION, Unit.SHARE, Unit.RATE}), parts=EVERY_PART),
    find=slowed,
)
