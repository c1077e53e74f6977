"""Limits that a benchmark must keep: printed with the measured value, and an exit status."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limit:
    """A measured median and the most it may be."""

    what: str
    median: float
    at_most: float
    unit: str = ""


def exit_status(limits: Sequence[Limit]) -> int:
    """Print each limit with its median; return 1 when a median is beyond its limit, else 0."""
    for limit in limits:
        verdict = "kept" if limit.median <= limit.at_most else "BEYOND THE LIMIT"
        median, at_most = (f"{value:,.4g}{limit.unit}" for value in (limit.median, limit.at_most))
        print(f"{limit.what}: {median}, limit {at_most}: {verdict}")
    return int(any(not limit.median <= limit.at_most for limit in limits))
