"""The report as JSON: every row in full, integer nanoseconds on the trace's own clock.

The shape is a contract, described in `docs/report.md`; `SCHEMA_VERSION` changes with it.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from tracekit import __version__
from tracekit.findings import Finding
from tracekit.reports import DeviceSummary, Renderer, Report, Screen, Section
from tracekit.trust import TrustMark

SCHEMA_VERSION = "1.1"


def _render(report: Report, _screen: Screen) -> str:
    document = {
        "schema_version": SCHEMA_VERSION,
        "tracekit_version": __version__,
        "sources": list(report.sources),
        "format": report.format_name,
        "window": report.window,
        "origin_ns": report.origin_ns,
        "notes": [asdict(note) for note in report.notes],
        "trust": [_mark(mark, report) for mark in report.trust],
        "summary": {"devices": [_device(device, report) for device in report.devices]},
        "analyses": {section.name: _analysis(section, report) for section in report.sections},
        "findings": [_finding(finding) for finding in report.findings],
        "labels": {
            space: {str(row_id): name for row_id, name in names.items()}
            for space, names in report.labels.items()
        },
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def _mark(mark: TrustMark, report: Report) -> dict[str, Any]:
    return {
        "mark": report.trust.index(mark) + 1,
        "code": mark.code,
        "label": mark.label,
        "text": mark.text,
        "numbers": dict(mark.numbers),
        "device": mark.device_id,
        "parts": sorted(mark.touches.parts),
        "tables": [sorted(some) for some in mark.touches.reads],
        "units": sorted(map(str, mark.touches.units)),
        "notes": list(mark.notes),
    }


def _trust(marks: Sequence[TrustMark], report: Report) -> list[dict[str, Any]]:
    return [{"mark": report.trust.index(mark) + 1, "code": mark.code} for mark in marks]


def _device(device: DeviceSummary, report: Report) -> dict[str, Any]:
    return {
        "device": device.device_id,
        "name": device.name,
        "start_ns": device.start_ns,
        "span_ns": device.span_ns,
        "busy_ns": device.busy_ns,
        "busy_is_at_least": device.busy_is_at_least,
        "idle_ns_by_cause": dict(device.idle_ns_by_cause),
        "trust": _trust(device.trust, report),
    }


def _analysis(section: Section, report: Report) -> dict[str, Any]:
    columns = [
        {
            "name": column.name,
            "type": str(column.dtype).lower().split("(")[0],
            "unit": str(column.unit),
            "meaning": column.meaning,
        }
        for column in section.table.columns
    ]
    return {
        "question": section.question,
        "skipped": section.skipped,
        "trust": _trust(section.trust, report),
        "columns": columns,
        "rows": section.frame.to_dicts(),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "severity": str(finding.severity),
        "message": finding.message,
        "evidence": dict(finding.evidence),
        "advice": finding.advice,
        "span_ns": finding.span_ns,
    }


RENDERER = Renderer(
    name="json",
    summary="for programs: every row, schema in docs/report.md",
    suffix=".json",
    render=_render,
)
