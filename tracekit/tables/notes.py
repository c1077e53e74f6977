"""What a reader could not know, counted: lost, unpaired and clamped rows are never silent."""

from dataclasses import dataclass
from enum import StrEnum

import polars as pl

from tracekit.tables import Column, Table, enum_column, text_column
from tracekit.units import Unit


class Severity(StrEnum):
    """How much a note matters.

    `info`: good to know. `notice`: neither a defect nor a loss, but it limits what can be said.
    `data-loss`: rows are missing or were changed. `error`: a part could not be read.
    """

    INFO = "info"
    NOTICE = "notice"
    DATA_LOSS = "data-loss"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Note:
    """One thing the reader could not know.

    Attributes:
        code: Stable, `room-noun.problem` (`kineto.truncated`, `rocpd.calls-not-collected`).
        severity: How much it matters.
        message: One sentence, with what to do where something can be done.
        count: Rows concerned; 1 for a statement about the whole file.
        source: File concerned.
    """

    code: str
    severity: Severity
    message: str
    count: int = 1
    source: str = ""


NOTES = Table(
    "notes",
    "one thing the reader could not know",
    (
        text_column("code", "Stable code, room-noun.problem."),
        enum_column("severity", tuple(map(str, Severity)), "info, notice, data-loss or error."),
        text_column("message", "One sentence."),
        Column("count", pl.Int64(), "Rows concerned.", Unit.COUNT),
        text_column("source", "File concerned."),
    ),
)
