"""Published tables beside what the mechanism gives.

`s1`, `s2`, `s3` and `s5` each define a `TABLE`, which `command` lists; `published` has the
authors' figures, `simulate` and `serving` the runs behind ours.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal

Kind = Literal["fitted", "predicted"]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure.

    Attributes:
        table: Name of the table.
        row: What was run.
        metric: What was measured, with its unit.
        published: By the authors; None where they give none, or a range only.
        ours: From the virtual device; a model, not a measurement.
        kind: `fitted`: a constant was chosen for it, so that it is no evidence. `predicted`: not.
        interval: Published 95 % interval, or range, of the figure; where neither is published, how
            near is near, which the table's `freedom` says.
    """

    table: str
    row: str
    metric: str
    published: float | None
    ours: float
    kind: Kind
    interval: tuple[float, float] | None = None

    @property
    def is_inside(self) -> bool | None:
        """Whether ours lies in the interval; None where there is none."""
        if self.interval is None:
            return None
        low, high = self.interval
        return low <= self.ours <= high

    def as_json(self) -> dict[str, object]:
        """Return the row as plain values."""
        return asdict(self) | {"is_inside": self.is_inside}


@dataclass(frozen=True, slots=True)
class Table:
    """A published table.

    Attributes:
        name: What the user calls it.
        title: What it shows.
        rows: Runs everything; is told what it is doing.
        freedom: What was fitted to what, and the degrees of freedom that leaves.
    """

    name: str
    title: str
    rows: Callable[[Say], list[Row]]
    freedom: str
