"""The report as one HTML file: offline, light and dark, printable, safe for any kernel name.

Everything is inside the file, plotly.js too. Text goes through jinja's escaping; data for scripts
is JSON in which no character can end the element that holds it.
"""

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import jinja2
from plotly.offline import get_plotlyjs

from tracekit import __version__
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
    shown_columns,
    table_command,
)
from tracekit.tables import Column
from tracekit.tables.notes import Severity
from tracekit.trust import doubts, signs
from tracekit.units import Unit, format_number

ROWS_SHOWN = 500
_LONG_TEXT = 24
_BARRED = {Unit.DURATION, Unit.SHARE}
_OTHER_COLOUR = "#70757c"
_NOTE_GROUPS = {
    Severity.ERROR: "A part could not be read",
    Severity.DATA_LOSS: "Rows are missing or were changed",
    Severity.NOTICE: "Limits of this trace",
    Severity.INFO: "Good to know",
}


@dataclass(frozen=True, slots=True)
class _Cell:
    """One table cell: text, the value to sort by, and the width of its bar in percent."""

    text: str
    sort: str
    is_number: bool
    bar: float | None = None


@cache
def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("tracekit", "reports"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _render(report: Report, _screen: Screen) -> str:
    seen = {name for device in report.devices for name, ns, _ in device.parts() if ns}
    parts = [name for name in ("busy", *CAUSES, *sorted(seen - {"busy", *CAUSES})) if name in seen]
    return (
        _templates()
        .get_template("report.html.jinja")
        .render(
            report=report,
            headline=headline(report),
            version=__version__,
            parts=parts,
            colours={name: COLOURS.get(name, _OTHER_COLOUR) for name in parts},
            meanings={"busy": BUSY_MEANS, **CAUSES},
            devices=[_device(device, parts, report) for device in report.devices],
            sections=[_section(section, report) for section in report.sections],
            notes=[
                (t, [n for n in report.notes_left() if n.severity is s])
                for s, t in _NOTE_GROUPS.items()
            ],
            figure=embedded(_figure(report.devices, parts)),
            figure_height_px=70 + 38 * len(report.devices),
            plotly=get_plotlyjs(),
        )
    )


def _device(device: DeviceSummary, parts: Sequence[str], report: Report) -> dict[str, object]:
    shares = {name: (ns, share) for name, ns, share in device.parts()}
    figures = {name: shares.get(name, (0, 0.0)) for name in parts}
    return {
        "label": _label(device),
        "span": format_number(device.span_ns, Unit.DURATION),
        "figures": {
            name: (
                device.share(name, share),
                format_number(ns, Unit.DURATION),
                signs(device.marks_of(name), report.trust),
            )
            for name, (ns, share) in figures.items()
        },
        "marks": _marks(device, report),
    }


def _marks(place: DeviceSummary | Section, report: Report) -> list[tuple[str, str]]:
    """Return sign and text of what stands here for the first time."""
    devices = len(report.devices)
    return [
        (signs([mark], report.trust), mark.said_among(devices)) for mark in report.first_told(place)
    ]


def _label(device: DeviceSummary) -> str:
    return f"{device.device_id} · {device.name}" if device.name else f"device {device.device_id}"


def _figure(devices: Sequence[DeviceSummary], parts: Sequence[str]) -> list[dict[str, object]]:
    """Return plotly's traces: one stacked bar per device, in percent of its own window."""
    shares = [{name: (ns, share) for name, ns, share in d.parts()} for d in devices]
    # plotly reads tags in labels.
    labels = [html.escape(_label(device)) for device in devices]
    return [
        {
            "type": "bar",
            "orientation": "h",
            "name": html.escape(part),
            "y": labels,
            "x": [100 * device.get(part, (0, 0.0))[1] for device in shares],
            "customdata": [
                f"{format_number(share, Unit.SHARE)}, {format_number(ns, Unit.DURATION)}"
                for ns, share in (device.get(part, (0, 0.0)) for device in shares)
            ],
            "hovertemplate": "%{y}<br>%{fullData.name}: %{customdata}<extra></extra>",
            "marker": {
                "color": COLOURS.get(part, _OTHER_COLOUR),
                "pattern": {"shape": "/" if part == "unknown" else ""},
            },
        }
        for part in parts
    ]


def _section(section: Section, report: Report) -> dict[str, object]:
    columns = shown_columns(section, report)
    names = [column.name for column in columns]
    shown = section.frame.head(ROWS_SHOWN).select(names)
    largest = [_largest(section, column) for column in columns]
    rows = [
        [
            _cell(value, column, most, report)
            for value, column, most in zip(row, columns, largest, strict=True)
        ]
        for row in shown.iter_rows()
    ]
    return {
        "section": section,
        "columns": [(heading(column), column, is_number(column)) for column in columns],
        "long": [any(len(row[i].text) > _LONG_TEXT for row in rows) for i in range(len(columns))],
        "rows": rows,
        "more": section.frame.height - len(rows),
        "command": table_command(section, report),
        "doubts": doubts(section.trust, report.trust),
        "marks": _marks(section, report),
    }


def _largest(section: Section, column: Column) -> float:
    """Return what a full bar stands for: the whole for a share, else the column's largest value."""
    if column.unit is Unit.SHARE:
        return 1.0
    largest = section.frame[column.name].max() if column.unit is Unit.DURATION else None
    return float(largest) if isinstance(largest, int | float) else 0.0


def _cell(value: object, column: Column, largest: float, report: Report) -> _Cell:
    text = cell(value, column, report)
    if not isinstance(value, int | float):
        return _Cell(text, "" if value is None else text, is_number(column))
    has_bar = column.unit in _BARRED and largest > 0
    width = round(max(0.0, min(100.0, 100 * value / largest)), 2) if has_bar else None
    return _Cell(text, str(value), is_number(column), width)


def embedded(value: object) -> str:
    """Return JSON that may stand in a script element: nothing in it can end the element.

    `<`, `>` and `&` are written as escapes (`</script>`, `<!--`), and so are the two line ends that
    JSON allows and JavaScript once did not.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


RENDERER = Renderer(
    name="html", summary="one file for a browser, works offline", suffix=".html", render=_render
)
