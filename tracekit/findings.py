"""`Finding`: something worth acting on, with its evidence and the advice that goes with it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class FindingSeverity(StrEnum):
    """`info`: worth knowing. `warning`: costs time. `critical`: may give wrong results."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class Finding:
    """One conclusion of one analysis.

    Attributes:
        code: Stable, `room-noun.problem` (`host-blocked.publish-event`).
        severity: How much it matters.
        message: One sentence with the figure.
        evidence: Numbers and names behind it, by name with units.
        advice: What to do, and the command that verifies it.
        span_ns: Where to look, `(start_ns, end_ns)`, if at one place.
    """

    code: str
    severity: FindingSeverity
    message: str
    evidence: Mapping[str, int | float | str | None]
    advice: str
    span_ns: tuple[int, int] | None = None
