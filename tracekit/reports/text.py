"""The report for a terminal: where the time went first, then what to do, then the tables."""

import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from io import StringIO
from typing import Literal

import polars as pl
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from tracekit.findings import Finding, FindingSeverity
from tracekit.reports import (
    BUSY_MEANS,
    CAUSES,
    COLOURS,
    DeviceSummary,
    Renderer,
    Report,
    Screen,
    Section,
    cell,
    heading,
    headline,
    is_number,
    shortened,
    shown_columns,
    table_command,
)
from tracekit.tables import Column
from tracekit.tables.notes import Note, Severity
from tracekit.trust import TrustMark, doubts, signs
from tracekit.units import Unit, format_number

ROWS_SHOWN = 15
_NARROWEST_TEXT = 12
_GAP = 2  # the box draws one of the blanks between columns

# One character per part, so that a bar reads without colour.
_GLYPHS = {
    "busy": "█",
    "host-blocked": "▓",
    "host-late": "▒",
    "starved": "░",
    "queue-wait": "%",
    "launch-latency": "=",
    "dispatch": "-",
    "edge": ".",
    "unknown": "?",
}
_SEVERITIES = {
    FindingSeverity.CRITICAL: ("may give wrong results", "bold red"),
    FindingSeverity.WARNING: ("costs time", "yellow"),
    FindingSeverity.INFO: ("worth knowing", "cyan"),
}
_NOTE_GROUPS = {
    Severity.ERROR: "A part could not be read",
    Severity.DATA_LOSS: "Rows are missing or were changed",
    Severity.NOTICE: "Limits of this trace",
    Severity.INFO: "Good to know",
}
# Names come from the trace: an escape sequence in a kernel name must not reach the terminal.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def _render(report: Report, screen: Screen) -> str:
    out = StringIO()
    console = Console(
        file=out,
        width=screen.width,
        force_terminal=screen.colour,
        color_system="256" if screen.colour else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    _head(console, report)
    _summary(console, report)
    _findings(console, report.findings)
    for section in report.sections:
        _section(console, section, report)
    _notes(console, report.notes_left())
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).rstrip() + "\n"


def _head(console: Console, report: Report) -> None:
    shown = ", ".join(map(plain, report.sources[:3]))
    more = len(report.sources) - 3
    shown += f" … and {more} more" if more > 0 else ""
    console.print(Text(f"{shown} ({report.format_name})", style="bold"))
    console.print(Text(f"Window: {plain(report.window)}. Times count from the first op.", "dim"))


def _title(console: Console, text: str, question: str = "") -> None:
    console.print()
    console.print(Text.assemble((text, "bold"), "   " if question else "", (question, "italic")))


def _summary(console: Console, report: Report) -> None:
    _title(console, "Where the time went")
    console.print(Text(headline(report)))
    seen: dict[str, None] = {}
    for device in report.devices:
        parts = device.parts()
        seen |= dict.fromkeys(name for name, ns, _ in parts if ns)
        console.print()
        console.print(Text(_device_line(device, report.trust, console.width)))
        console.print(_bar(parts, console.width))
        _marks(console, device, report)
    legend = Grid.grid(padding=(0, 1, 0, 0))
    for name in [name for name in ("busy", *CAUSES) if name in seen]:
        glyph = Text(f"  {_GLYPHS[name] * 2}", COLOURS[name])
        legend.add_row(glyph, Text(name), Text(CAUSES.get(name, BUSY_MEANS), "dim"))
    console.print(legend)


def _device_line(device: DeviceSummary, trust: Sequence[TrustMark], width: int) -> str:
    name = f"device {device.device_id}" + (f" · {plain(device.name)}" if device.name else "")
    # What touches all idle time is said once, before its causes.
    of_idle = [mark for mark in device.trust if "idle" in mark.touches.parts]
    busy, *idle = (
        f"{part} {device.share(part, share)} {signs(marks, trust)}".rstrip()
        for part, _, share in device.parts()
        for marks in [[m for m in device.marks_of(part) if part == "busy" or m not in of_idle]]
    )
    length = format_number(device.span_ns, Unit.DURATION)
    before = f"idle {signs(of_idle, trust)}: " if of_idle and idle else ""
    line = f"{name}, {length}: {busy} | {before}{', '.join(idle) or 'never idle'}"
    # A line breaks between figures, never inside one, and never before its signs.
    kept = re.sub(r" (?=%|!\d)|(?<=≥) ", "\u00a0", line)
    return textwrap.fill(kept, width, subsequent_indent="  ", break_on_hyphens=False).replace(
        "\u00a0", " "
    )


def _marks(console: Console, place: DeviceSummary | Section, report: Report) -> None:
    """Print what the signs mean that stand here for the first time."""
    for mark in report.first_told(place):
        sign = Text(signs([mark], report.trust) + " ", "yellow")
        console.print(Padding(Text.assemble(sign, plain(mark.text)), (0, 0, 0, 2)))


def _bar(parts: Sequence[tuple[str, int, float]], width: int) -> Text:
    """Return a stacked bar; the ends of its parts are rounded, so that they add up to `width`."""
    bar = Text()
    reached, drawn = 0.0, 0
    for name, _, share in parts:
        reached += share
        length = round(reached * width) - drawn
        bar.append(_GLYPHS.get(name, "+") * length, style=COLOURS.get(name, ""))
        drawn += length
    return bar


def _findings(console: Console, findings: Sequence[Finding]) -> None:
    _title(console, "Findings")
    if not findings:
        console.print("Nothing that needs attention.")
    for finding in findings:
        meaning, style = _SEVERITIES[finding.severity]
        console.print(Text.assemble((f"{finding.severity} ({meaning}): ", style), finding.code))
        lines = [finding.message, *([f"→ {finding.advice}"] if finding.advice else [])]
        for line in lines:
            console.print(Padding(Text(plain(line)), (0, 0, 0, 2)))


def _section(console: Console, section: Section, report: Report) -> None:
    _title(console, section.name, section.question)
    if section.skipped is not None:
        console.print(f"Skipped: {section.skipped}.")
        return
    if section.trust:
        console.print(Text(f"Less sure: {doubts(section.trust, report.trust)}.", "yellow"))
        _marks(console, section, report)
    if section.frame.is_empty():
        console.print("Nothing to show: this trace has none.")
        return
    columns = shown_columns(section, report)
    shown = section.frame.head(ROWS_SHOWN)
    cells = {c: [plain(cell(value, c, report)) for value in shown[c.name]] for c in columns}
    fitting = _fitting(columns, cells, console.width, section.table.answers)
    console.print(_grid(fitting, cells, console.width))
    if left_out := [heading(column) for column in columns if column not in fitting]:
        console.print(Text(f"Columns that do not fit here: {', '.join(left_out)}.", "dim"))
    if (more := section.frame.height - ROWS_SHOWN) > 0:
        console.print(Text(plain(f"… and {more:,} more ({table_command(section, report)})")))


def _fitting(
    columns: Sequence[Column],
    cells: Mapping[Column, Sequence[str]],
    width: int,
    answers: Collection[str],
) -> list[Column]:
    """Return the columns that fit without cutting a number or a text below what identifies it.

    The column with the fewest values goes first, of equals the rightmost, but answers go last; the
    first column stays.
    """

    def rank(place: int) -> tuple[bool, int, int]:
        column = kept[place]
        return column.name not in answers, cells[column].count("–"), place

    kept = list(columns)
    while len(kept) > 1 and _total(_narrowest(c, cells[c]) for c in kept) > width:
        del kept[max(range(1, len(kept)), key=rank)]
    return kept


def _total(widths: Iterable[int]) -> int:
    return sum(width + _GAP for width in widths) - _GAP


def _narrowest(column: Column, texts: Sequence[str]) -> int:
    """Return the least width: numbers, fixed vocabularies and words of a heading are never cut."""
    longest = max(map(len, texts))
    is_whole = is_number(column) or isinstance(column.dtype, pl.Enum)
    least = longest if is_whole else min(longest, _NARROWEST_TEXT)
    return max(least, *map(len, heading(column).split()))


def _grid(columns: Sequence[Column], cells: Mapping[Column, Sequence[str]], width: int) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    widths = _widths(columns, cells, width)
    for column, wide in zip(columns, widths, strict=True):
        justify: Literal["left", "right"] = "right" if is_number(column) else "left"
        grid.add_column(heading(column), justify=justify, width=wide)
    for row in zip(*(cells[column] for column in columns), strict=True):
        texts = (Text(shortened(t, w), no_wrap=True) for t, w in zip(row, widths, strict=True))
        grid.add_row(*texts)
    return grid


def _widths(
    columns: Sequence[Column], cells: Mapping[Column, Sequence[str]], width: int
) -> list[int]:
    """Return a width per column: headings give first, then the widest texts, until all fit."""
    least = [_narrowest(column, cells[column]) for column in columns]
    widths = [max(n, *map(len, cells[c])) for n, c in zip(least, columns, strict=True)]
    while _total(widths) > width and widths != least:
        widest = max(range(len(widths)), key=lambda i: (widths[i] > least[i], widths[i]))
        widths[widest] -= 1
    return widths


def _notes(console: Console, notes: Iterable[Note]) -> None:
    by_severity = {s: [n for n in notes if n.severity is s] for s in _NOTE_GROUPS}
    for severity, group in by_severity.items():
        if not group:
            continue
        _title(console, f"{_NOTE_GROUPS[severity]}")
        for note in group:
            times = f" ({note.count:,}×)" if note.count != 1 else ""
            line = f"{note.code}{times}: {note.message}"
            console.print(Padding(Text(plain(line)), (0, 0, 0, 2)))


def plain(text: str) -> str:
    """Return text without characters that could move or recolour a terminal."""
    return _UNPRINTABLE.sub("�", text)


RENDERER = Renderer(
    name="text",
    summary="for a terminal: the summary and short tables",
    suffix=".txt",
    render=_render,
)
