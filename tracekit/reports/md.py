"""The report as GitHub markdown, for an issue or a pull request."""

import re
from collections.abc import Iterator

from tracekit.findings import Finding
from tracekit.reports import (
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
from tracekit.trust import doubts, signs
from tracekit.units import Unit, format_number

ROWS_SHOWN = 15
_LONGEST_NAME = 80
# An underscore inside a word is only an underscore.
_MARKUP = re.compile(r"([\\`*\[\]<>#|~@&$]|(?<!\w)_|_(?!\w))")


def _render(report: Report, _screen: Screen) -> str:
    return "\n".join(_lines(report)).rstrip() + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield "# Where the GPU's time went"
    yield ""
    yield f"{prose(headline(report))}"
    yield ""
    yield f"From {', '.join(map(code, report.sources))} ({report.format_name})."
    yield f"Window: {prose(report.window)}. Times count from the first op."
    yield ""
    yield from _summary(report)
    yield from ("", "## Findings", "")
    yield from map(_finding, report.findings)
    if not report.findings:
        yield "Nothing that needs attention."
    for section in report.sections:
        yield from ("", f"## {section.name}", "", f"*{prose(section.question)}*", "")
        yield from _section(section, report)
    notes = report.notes_left()
    if notes:
        yield from ("", "## Notes", "")
    for note in notes:
        times = f" ({note.count:,}×)" if note.count != 1 else ""
        yield f"- **{note.severity}** {code(note.code)}{times}: {prose(note.message)}"


def _summary(report: Report) -> Iterator[str]:
    rows = [(d, {name: share for name, _, share in d.parts()}) for d in report.devices]
    parts = list(dict.fromkeys(name for _, shares in rows for name in shares))
    yield f"| device | span | {' | '.join(parts)} |"
    yield f"|---|---:|{'---:|' * len(parts)}"
    for device, shares in rows:
        name = f"{device.device_id} · {device.name}" if device.name else str(device.device_id)
        figures = [device.share(part, shares.get(part, 0.0)) for part in parts]
        marked = [
            f"{figure} {signs(device.marks_of(part), report.trust)}".rstrip()
            for part, figure in zip(parts, figures, strict=True)
        ]
        span = format_number(device.span_ns, Unit.DURATION)
        yield f"| {prose(name)} | {span} | {' | '.join(marked)} |"
    told = [line for device in report.devices for line in _marks(device, report)]
    yield from ["", *told] if told else []


def _marks(place: DeviceSummary | Section, report: Report) -> Iterator[str]:
    """Yield what the signs mean that stand here for the first time."""
    for mark in report.first_told(place):
        yield f"- {signs([mark], report.trust)} {prose(mark.said_among(len(report.devices)))}"


def _finding(finding: Finding) -> str:
    advice = f" → {prose(finding.advice)}" if finding.advice else ""
    return f"- **{finding.severity}** {code(finding.code)}: {prose(finding.message)}{advice}"


def _section(section: Section, report: Report) -> Iterator[str]:
    if section.skipped is not None:
        yield f"Skipped: {prose(section.skipped)}."
        return
    if section.trust:
        yield f"Less sure: {prose(doubts(section.trust, report.trust))}."
        yield from ("", *told, "") if (told := [*_marks(section, report)]) else [""]
    if section.frame.is_empty():
        yield "Nothing to show: this trace has none."
        return
    columns = shown_columns(section, report)
    yield f"| {' | '.join(heading(column) for column in columns)} |"
    yield f"|{'|'.join('---:' if is_number(column) else '---' for column in columns)}|"
    for row in section.frame.head(ROWS_SHOWN).select(c.name for c in columns).iter_rows():
        cells = (_cell(value, c, report) for value, c in zip(row, columns, strict=True))
        yield f"| {' | '.join(cells)} |"
    if (more := section.frame.height - ROWS_SHOWN) > 0:
        yield from ("", f"… and {more:,} more: {code(table_command(section, report))}")


def _cell(value: object, column: Column, report: Report) -> str:
    text = cell(value, column, report)
    return code(shortened(text, _LONGEST_NAME)) if isinstance(value, str) else prose(text)


def code(text: str) -> str:
    """Return text as a code span: `<4, …>`, `@name` and `#1` stay what they are.

    A pipe ends a table cell even inside code, so it is escaped; a fence longer than any run of
    backticks inside holds them.
    """
    flat = _one_line(text).replace("|", "\\|")
    longest = max((len(run) for run in re.findall(r"`+", flat)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if longest else ""
    return f"{fence}{pad}{flat}{pad}{fence}"


def prose(text: str) -> str:
    """Return a sentence with every character that markdown would read as markup escaped."""
    return _MARKUP.sub(r"\\\1", _one_line(text))


def _one_line(text: str) -> str:
    """Return text without line breaks and without what a terminal would obey (names are data)."""
    return "".join(c if c.isprintable() else "\ufffd" for c in re.sub(r"\s+", " ", text))


RENDERER = Renderer(
    name="md", summary="GitHub markdown, for an issue or a review", suffix=".md", render=_render
)
