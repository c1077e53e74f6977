"""The room of report renderers: one module per output, each defining `RENDERER`.

A renderer is a pure function from a `Report` to text. It renders declared tables and knows no
analysis by name. What all renderers say alike is here: how a column is headed, a value written, a
cause of idle time explained.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import polars as pl

from tracekit.findings import Finding
from tracekit.registry import load_room
from tracekit.tables import Column, Table
from tracekit.tables.catalog import TABLES
from tracekit.tables.notes import Note
from tracekit.trust import TrustMark, signs
from tracekit.units import Unit, format_number, format_time

CAUSES: Mapping[str, str] = {
    "host-blocked": "the host sat in a blocking call, or was still catching up after one",
    "host-late": "the host was running, but launched too late",
    "starved": "no range was open and nothing was called for a millisecond or more",
    "queue-wait": "work was submitted, but its stream waited for another queue",
    "launch-latency": "work was submitted, but began late",
    "dispatch": "between two ops of one graph launch",
    "edge": "at the ends of the window, or before work queued before the trace began",
    "unknown": "the trace does not record what it would take to tell",
}
"""Causes of idle time, as people read them: what the host can change first."""

COLOURS: Mapping[str, str] = {
    "busy": "#009e73",
    "host-blocked": "#d55e00",
    "host-late": "#e69f00",
    "starved": "#f0e442",
    "queue-wait": "#0072b2",
    "launch-latency": "#56b4e9",
    "dispatch": "#cc79a7",
    "edge": "#a0a4aa",
    "unknown": "#70757c",
}
"""One colour per part in every report; Okabe and Ito's palette, safe for colour-blind eyes."""

BUSY_MEANS = "the device was executing at least one op"

_SUFFIXES = ("_ns", "_bytes", "_id")


@dataclass(frozen=True, slots=True)
class DeviceSummary:
    """One device in three numbers that add up: `span_ns = busy_ns + Σ idle_ns_by_cause`.

    Attributes:
        device_id: The device.
        name: Its name for people.
        start_ns: Where its window begins.
        span_ns: Length of the window.
        busy_ns: Length of the union of its ops inside the window.
        idle_ns_by_cause: Every other nanosecond, by its one cause.
        trust: What makes some of these figures less sure than they look.
    """

    device_id: int
    name: str
    start_ns: int
    span_ns: int
    busy_ns: int
    idle_ns_by_cause: Mapping[str, int]
    trust: Sequence[TrustMark] = ()

    @property
    def busy_is_at_least(self) -> bool:
        """Whether `busy_ns` is a lower bound."""
        return any(mark.busy_is_at_least for mark in self.trust)

    def marks_of(self, part: str) -> list[TrustMark]:
        """Return the marks that touch a part which has time in it."""
        touching = [mark for mark in self.trust if mark.touches.part(part)]
        return touching if part in [name for name, _, _ in self.parts()] else []

    def share(self, part: str, share: float) -> str:
        """Return the share of a part as people read it, a bound as a bound (`≥ 13.0 %`)."""
        is_bound = part == "busy" and self.busy_is_at_least
        return ("≥ " if is_bound else "") + format_number(share, Unit.SHARE)

    def parts(self) -> list[tuple[str, int, float]]:
        """Return `busy` and the causes with time in them: name, nanoseconds, share of the span."""
        known = [cause for cause in CAUSES if cause in self.idle_ns_by_cause]
        other = sorted(set(self.idle_ns_by_cause) - set(known))
        spent = {"busy": self.busy_ns, **{c: self.idle_ns_by_cause[c] for c in [*known, *other]}}
        span_ns = max(self.span_ns, 1)
        return [(name, ns, ns / span_ns) for name, ns in spent.items() if ns or name == "busy"]


@dataclass(frozen=True, slots=True)
class Section:
    """The result of one analysis, or why there is none.

    Attributes:
        name: Name of the analysis.
        question: The question it answers.
        table: Declared columns of `frame`.
        frame: The result; empty when skipped.
        skipped: `needs calls` and the like; None when it ran.
        trust: What makes its figures less sure than they look.
    """

    name: str
    question: str
    table: Table
    frame: pl.DataFrame
    skipped: str | None = None
    trust: Sequence[TrustMark] = ()

    @property
    def table_name(self) -> str:
        """What `tracekit table PATH` calls the result: a canonical table's name is the table's."""
        return f"analysis:{self.name}" if self.name in TABLES else self.name


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a renderer shows.

    Attributes:
        sources: Paths read, as the user gave them.
        format_name: Name of the format they are in.
        window: What the shares refer to, in words.
        notes: What the reader and the analyses could not know.
        devices: One summary per device that did something inside the window.
        sections: One per analysis asked for.
        findings: Worst first.
        origin_ns: The instant that people's times are counted from: the trace's first op.
        labels: Names for people by key space ("device", "queue", "stream", "process") and id.
        trust: Every mark of its devices and sections; a mark's sign is its place here, from `!1`.
    """

    sources: Sequence[str]
    format_name: str
    window: str
    notes: Sequence[Note]
    devices: Sequence[DeviceSummary]
    sections: Sequence[Section]
    findings: Sequence[Finding]
    origin_ns: int = 0
    labels: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    trust: Sequence[TrustMark] = ()

    def first_told(self, place: "DeviceSummary | Section") -> list[TrustMark]:
        """Return the marks of a device or section that nothing before it in the report has."""
        places: list[DeviceSummary | Section] = [*self.devices, *self.sections]
        before = places[: [other is place for other in places].index(True)]
        return [m for m in place.trust if not any(m in other.trust for other in before)]

    def signs_of(self, part: str) -> str:
        """Return the signs of what touches a part of any device, as they follow a figure."""
        touching = [mark for device in self.devices for mark in device.marks_of(part)]
        marks = [mark for mark in self.trust if mark in touching]
        return f" {signs(marks, self.trust)}" if marks else ""

    def notes_left(self) -> list[Note]:
        """Return the notes that no mark says already; what is true of several files, once."""
        said = frozenset().union(*(mark.notes for mark in self.trust))
        counts: dict[Note, int] = {}
        for note in self.notes:
            if note.code not in said:
                of_any_file = replace(note, count=0, source="")
                counts[of_any_file] = counts.get(of_any_file, 0) + note.count
        return [replace(note, count=count) for note, count in counts.items()]


@dataclass(frozen=True, slots=True)
class Screen:
    """What text is written for: `width` characters, with or without colour."""

    width: int = 100
    colour: bool = False


@dataclass(frozen=True, slots=True)
class Renderer:
    """One kind of output.

    Attributes:
        name: The user's name of it (`--as html`).
        summary: One line for help.
        suffix: File suffix that selects it when `-o` is given without `--as`.
        render: Report → text. Only text for terminals looks at the screen.
    """

    name: str
    summary: str
    suffix: str
    render: Callable[[Report, Screen], str]


@cache
def renderers() -> dict[str, Renderer]:
    """Return all renderers by name."""
    return load_room(__name__, "RENDERER", Renderer)


def headline(report: Report) -> str:
    """Return the summary in two sentences: how busy, and what most of the idle time went to."""
    devices = report.devices
    if not devices:
        return "No device did anything."
    shares = sorted(device.busy_ns / max(device.span_ns, 1) for device in devices)
    low, high = (format_number(share, Unit.SHARE) for share in (shares[0], shares[-1]))
    who = "The GPU was" if len(devices) == 1 else f"{len(devices)} GPUs were"
    bound = "at least " if any(device.busy_is_at_least for device in devices) else ""
    busy = bound + (low if low == high else f"{low} to {high}") + report.signs_of("busy")
    length = format_number(max(device.span_ns for device in devices), Unit.DURATION)
    idle: Counter[str] = Counter()
    for device in devices:
        idle.update(device.idle_ns_by_cause)
    if not idle.total():
        return f"{who} busy {busy} of {length}, and never idle."
    cause, idle_ns = idle.most_common(1)[0]
    share = format_number(idle_ns / idle.total(), Unit.SHARE) + report.signs_of(cause)
    meaning = f": {CAUSES[cause]}" if cause in CAUSES else ""
    return f"{who} busy {busy} of {length}. Of the idle time, {share} is {cause}{meaning}."


def table_command(section: Section, report: Report) -> str:
    """Return the command that prints a section in full."""
    path = shlex.quote(report.sources[0]) if len(report.sources) == 1 else "PATH"
    return f"tracekit table {path} {section.table_name}"


def heading(column: Column) -> str:
    """Return a column's name without its unit, which its values carry: `idle_ns` → `idle`."""
    suffix = next((s for s in _SUFFIXES if column.name.endswith(s)), "")
    return column.name.removesuffix(suffix).replace("_", " ")


def is_number(column: Column) -> bool:
    """Return whether a column holds numbers that align right; an id is a name, not a number."""
    return column.dtype.is_numeric() and column.unit is not Unit.ID


def cell(value: object, column: Column, report: Report) -> str:
    """Return a value as people read it: scaled, counted from the first op, an id with its name."""
    if value is None:
        return "–"
    if column.unit is Unit.TIME and isinstance(value, int):
        return format_time(value, report.origin_ns)
    if column.unit is Unit.ID and isinstance(value, int):
        name = report.labels.get(column.space or "", {}).get(value)
        return f"{value} · {name}" if name else str(value)
    if isinstance(value, list):
        return " ".join(map(str, value))
    return format_number(value if isinstance(value, int | float) else str(value), column.unit)


def shown_columns(section: Section, report: Report) -> list[Column]:
    """Return the columns worth their width: something in them, and not the one device again."""
    frame = section.frame
    alone = {
        space
        for space, count in (
            ("device", len(report.devices)),
            ("process", len(report.labels.get("process", {}))),
        )
        if count == 1
    }
    return [
        column
        for column in section.table.columns
        if (frame[column.name].null_count() < frame.height and column.space not in alone)
    ]


def shortened(text: str, width: int) -> str:
    """Return text cut in the middle: a kernel's name tells most at its two ends."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"
