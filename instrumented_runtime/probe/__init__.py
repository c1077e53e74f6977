"""What the machine in front of it costs and what it orders, measured without a profiler.

A profiler that intercepts queues changes what is measured here, so everything is told from the
host's clock: differences between a shorter and a longer program, in which constant parts cancel.

Each module but `medians`, `programs` and `report` is one group of hazards and defines a `PROBE`,
which `command` lists.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from instrumented_runtime.devices import Device

Unit = Literal["ns", "ratio", "bytes_per_ns", "streams"]
Answer = Literal["yes", "no", "undecided"]


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured.

    Attributes:
        name: Stable, with its unit.
        what: The same for people.
        unit: Of median and interval.
        median: Of the samples; None where no repetition was valid.
        low: Lower end of the interval of the median; None with fewer than six samples.
        high: Upper end.
        n: Samples behind it.
    """

    name: str
    what: str
    unit: Unit
    median: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the figures say of one hazard.

    Attributes:
        hazard: What may be wrong with this machine, as a statement.
        answer: Whether it is; `undecided` where the interval holds the limit.
        evidence: The figure that decides, with interval and n.
        meaning: What to do, or what need not be done.
    """

    hazard: str
    answer: Answer
    evidence: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Findings:
    """All that one probe found."""

    figures: Sequence[Figure]
    verdicts: Sequence[Verdict]

    def __getitem__(self, name: str) -> Figure:
        """Return a figure by its name."""
        return {figure.name: figure for figure in self.figures}[name]


@dataclass(frozen=True, slots=True)
class Probe:
    """One group of hazards.

    Attributes:
        name: What the user calls it.
        question: What it answers.
        run: Measures on an idle device, with so many repetitions.
    """

    name: str
    question: str
    run: Callable[[Device, int], Findings]
