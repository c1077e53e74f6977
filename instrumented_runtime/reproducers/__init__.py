"""Each problem on its own, its ways of going wrong and its fixes side by side.

A module defines a `REPRODUCER`, which `command` lists; `lab` has the devices that modes run on.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from instrumented_runtime.reproducers.lab import Lab


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one mode showed.

    Attributes:
        mode: Its name, and that of the folder of its trace.
        is_fixed: Whether it has to be clean.
        problem: What went wrong, in a few words; empty if nothing did.
        figures: What was measured, by what it is, with its unit.
    """

    mode: str
    is_fixed: bool
    problem: str = ""
    figures: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """What the table says of it."""
        if self.problem:
            return f"{'FIXED, AND NOT CLEAN' if self.is_fixed else 'reproduced'}: {self.problem}"
        return "clean" if self.is_fixed else "clean, not seen on this device"


@dataclass(frozen=True, slots=True)
class Reproducer:
    """One problem.

    Attributes:
        name: What the user calls it.
        shows: What goes wrong, in one sentence.
        modes: Names of all that it runs in a lab.
        run: Runs its modes, each in a `Lab.mode`, and says what came out as it goes.
        run_full: The same at a length that `run` only has a part of, never recorded; None if it
            has no such part.
        devices: On which kinds of device it can run.
    """

    name: str
    shows: str
    modes: Callable[["Lab"], Sequence[str]]
    run: Callable[["Lab"], Iterator[Outcome]]
    run_full: Callable[[], Iterator[Outcome]] | None = None
    devices: tuple[str, ...] = ("virtual", "torch")
