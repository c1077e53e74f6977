"""The report as JSON: every row in full, integer nanoseconds on the trace's own clock.

The shape is a contract, described in `docs/report.md`; `SCHEMA_VERSION` changes with it.
"""

from dataclasses import asdict
from typing import Any

import msgspec

from tracekit import __version__
from tracekit.findings import Finding
from tracekit.reports import DeviceSummary, Renderer, Report, Screen, Section

SCHEMA_VERSION = "1.0"


def _render(report: Report, _screen: Screen) -> str:
    document = {
        "schema_version": SCHEMA_VERSION,
        "tracekit_version": __version__,
        "sources": list(report.sources),
        "format": report.format_name,
        "window": report.window,
        "origin_ns": report.origin_ns,
        "notes": [asdict(note) for note in report.notes],
        "summary": {"devices": [_device(device) for device in report.devices]},
        "analyses": {section.name: _analysis(section) for section in report.sections},
        "findings": [_finding(finding) for finding in report.findings],
        "labels": {
            space: {str(row_id): name for row_id, name in names.items()}
            for space, names in report.labels.items()
        },
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def _device(device: DeviceSummary) -> dict[str, Any]:
    return {
        "device": device.device_id,
        "name": device.name,
        "start_ns": device.start_ns,
        "span_ns": device.span_ns,
        "busy_ns": device.busy_ns,
        "idle_ns_by_cause": dict(device.idle_ns_by_cause),
    }


def _analysis(section: Section) -> dict[str, Any]:
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
