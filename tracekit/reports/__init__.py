"""The room of report renderers: one module per output, each defining `RENDERER`.

A renderer is a pure function from a `Report` to text. It renders declared tables and knows no
analysis by name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import polars as pl

from tracekit.findings import Finding
from tracekit.registry import load_room
from tracekit.tables import Table
from tracekit.tables.notes import Note


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    """One device in three numbers that add up: `span_ns = busy_ns + Σ idle_ns_by_cause`.

    Attributes:
        device_id: The device.
        name: Its name for people.
        span_ns: Length of the window.
        busy_ns: Length of the union of its ops inside the window.
        idle_ns_by_cause: Every other nanosecond, by its one cause.
    """

    device_id: int
    name: str
    start_ns: int
    span_ns: int
    busy_ns: int
    idle_ns_by_cause: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Section:
    """The result of one analysis, or why there is none.

    Attributes:
        name: Name of the analysis.
        question: The question it answers.
        table: Declared columns of `frame`.
        frame: The result; empty when skipped.
        skipped: `needs calls` and the like; None when it ran.
    """

    name: str
    question: str
    table: Table
    frame: pl.DataFrame
    skipped: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a renderer shows."""

    sources: Sequence[str]
    format_name: str
    window: str
    notes: Sequence[Note]
    devices: Sequence[DeviceSummary]
    sections: Sequence[Section]
    findings: Sequence[Finding]


@dataclass(frozen=True, slots=True)
class Renderer:
    """One kind of output.

    Attributes:
        name: The user's name of it (`--as html`).
        summary: One line for help.
        suffix: File suffix that selects it when `-o` is given without `--as`.
        render: Report → text.
    """

    name: str
    summary: str
    suffix: str
    render: Callable[[Report], str]


@cache
def renderers() -> dict[str, Renderer]:
    """Return all renderers by name."""
    return load_room(__name__, "RENDERER", Renderer)
