"""Chains the stages, trace → windows → analyses → report: no arithmetic beyond assembling."""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import polars as pl

from tracekit import intervals
from tracekit.analyses import Analysis, analyses, call_with_tables, fingerprint, tables_of
from tracekit.errors import BadInput
from tracekit.findings import Finding, FindingSeverity
from tracekit.formats import Progress, silent
from tracekit.labels import labels
from tracekit.reports import DeviceSummary, Report, Section
from tracekit.tables.notes import Note, Severity
from tracekit.trace import DAMAGE, StoredResult, StoredResults, Trace
from tracekit.trust import TrustMark, trust_marks
from tracekit.units import format_time
from tracekit.windows import Window, device_spans, extent, windows_frame, work_of

T = TypeVar("T")
IDLE_GAPS = "idle-gaps"
_WORST_FIRST = (FindingSeverity.CRITICAL, FindingSeverity.WARNING, FindingSeverity.INFO)


def closest(name: str, known: Iterable[str], what: str) -> str:
    """Return `name` if it is known.

    Raises:
        BadInput: It is not; says which one was probably meant.
    """
    names = sorted(known)
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(names) or 'none'}"
    raise BadInput(name, f"no such {what}", hint)


def analyse(
    trace: Trace,
    *,
    only: Sequence[str] = (),
    window: Window | None = None,
    against: Trace | None = None,
    progress: Progress = silent,
    known: Mapping[str, Analysis] | None = None,
) -> Report:
    """Return the report of a trace: every analysis, or the ones named.

    The summary of devices needs idle-gaps, so it runs even where `only` leaves it out.

    Args:
        trace: What was read.
        only: Names of analyses; empty for all.
        window: Part of the trace to look at; None for all of it.
        against: Another trace, all of it, for analyses that take from it what this one lacks.
        progress: Told which analysis is running.
        known: Analyses by name; those of the room if None.

    Raises:
        BadInput: An analysis is not known, a trace holds no ops, or the window holds none.
    """
    stored = _stored(trace) if window is None and known is None else {}
    known = analyses() if known is None else known
    # What explains the summary comes first, the others by name.
    ordered = sorted(known, key=lambda name: (name != IDLE_GAPS, name))
    wanted = [closest(name, known, "analysis") for name in dict.fromkeys(only)] or ordered
    spans = device_spans(trace)
    windows = windows_frame(spans, window)
    origin_ns, _ = extent(spans)
    notes = [*trace.notes, *_deviceless(trace), *_held_against(against)]
    sections: dict[str, Section] = {}
    findings: list[Finding] = []
    to_run = list(dict.fromkeys([*wanted, *({IDLE_GAPS} & set(known))]))
    for done, name in enumerate(to_run):
        progress(done, len(to_run), name)
        kept = None if against and known[name].against else stored.get(name)
        section, caveats = _run(known[name], trace, windows, kept, against)
        sections[name] = section
        if name in wanted:
            notes += caveats
            findings += _findings(known[name], section)
    progress(len(to_run), len(to_run), "done")
    marks = trust_marks(trace, windows, busy := _busy(trace, windows))
    devices = _summaries(trace, windows, busy, sections.get(IDLE_GAPS), marks)
    shown = [_marked(sections[name], known[name], marks) for name in wanted]
    return Report(
        sources=trace.source_names,
        format_name=trace.format_name,
        window=_words(window, origin_ns),
        notes=list(dict.fromkeys(notes)),
        devices=devices,
        sections=shown,
        findings=sorted(findings, key=lambda finding: _WORST_FIRST.index(finding.severity)),
        origin_ns=origin_ns,
        labels=labels(trace),
        trust=_seen(marks, devices, shown),
    )


def with_results(trace: Trace, progress: Progress = silent) -> Trace:
    """Return a trace that carries the results of every analysis, for a run directory to keep.

    Without GPU work there is nothing to analyse, and the trace is returned as it is.
    """
    try:
        windows = windows_frame(device_spans(trace), None)
    except BadInput:
        return trace
    made = {}
    for done, (name, analysis) in enumerate(analyses().items()):
        progress(done, len(analyses()), name)
        section, caveats = _run(analysis, trace, windows)
        made[name] = StoredResult(section.frame, caveats, section.skipped)
    return replace(trace, results=StoredResults(fingerprint(), made))


def _stored(trace: Trace) -> Mapping[str, StoredResult]:
    """Return the results that a run directory holds, if this very code made them."""
    results = trace.results
    return results.by_name if results and results.made_by == fingerprint() else {}


def _kept(analysis: Analysis, stored: StoredResult) -> tuple[Section, list[Note]] | None:
    """Return a stored result, or None if its file is damaged: then it is made again."""
    try:
        frame = analysis.table.conform(stored.frame.lazy().collect())
    except (*DAMAGE, ValueError):
        return None
    return _section(analysis, frame, stored.skipped), list(stored.caveats)


def _run(
    analysis: Analysis,
    trace: Trace,
    windows: pl.DataFrame,
    stored: StoredResult | None = None,
    against: Trace | None = None,
) -> tuple[Section, list[Note]]:
    kept = None if stored is None else _kept(analysis, stored)
    if kept is not None:
        return kept
    missing = [name for name in analysis.needs if trace.table(name).is_empty()]
    if missing:
        needs = f"needs {', '.join(missing)}"
        return _section(analysis, analysis.table.empty(), needs), []
    frame = analysis.table.conform(_computed(analysis, trace, windows, against))
    caveats = analysis.caveats
    notes = _called(caveats, trace, {"windows": windows, "result": frame}) if caveats else []
    return _section(analysis, frame), notes


def _computed(
    analysis: Analysis, trace: Trace, windows: pl.DataFrame, against: Trace | None
) -> pl.DataFrame:
    if against is None or analysis.against is None:
        return _called(analysis.compute, trace, {"windows": windows})
    other_windows = windows_frame(device_spans(against), None)
    own, other = (
        _called(analysis.against.profile, of, {"windows": spans})
        for of, spans in ((trace, windows), (against, other_windows))
    )
    return analysis.against.result(own, other)


def _called(function: Callable[..., T], trace: Trace, made: Mapping[str, pl.DataFrame]) -> T:
    """Call a function with the tables its parameters name: those made here, else the trace's."""
    names = tables_of(function)
    return call_with_tables(
        function, {name: made[name] if name in made else trace.table(name) for name in names}
    )


def _section(analysis: Analysis, frame: pl.DataFrame, skipped: str | None = None) -> Section:
    return Section(analysis.name, analysis.question, analysis.table, frame, skipped)


def _marked(section: Section, analysis: Analysis, marks: Sequence[TrustMark]) -> Section:
    """Return a section with the marks that touch what it reads or shows; a skipped one has none."""
    tables = tables_of(analysis.compute)
    units = {column.unit for column in analysis.table.columns}
    touching = [mark for mark in marks if mark.touches.analysis(tables, units)]
    return section if section.skipped is not None else replace(section, trust=touching)


def _seen(
    marks: Sequence[TrustMark], devices: Iterable[DeviceSummary], sections: Iterable[Section]
) -> list[TrustMark]:
    """Return the marks that touch something in the report, in their order."""
    touching = [*(device.trust for device in devices), *(section.trust for section in sections)]
    return [mark for mark in marks if any(mark in some for some in touching)]


def _busy(trace: Trace, windows: pl.DataFrame) -> pl.DataFrame:
    """Return when each device ran something inside its window, disjoint and ordered."""
    spans = windows.filter(pl.col("device_id").is_not_null())
    return intervals.clip(intervals.union(work_of(trace), ["device_id"]), spans, ["device_id"])


def _summaries(
    trace: Trace,
    windows: pl.DataFrame,
    busy: pl.DataFrame,
    idle: Section | None,
    marks: Sequence[TrustMark],
) -> list[DeviceSummary]:
    """Return each device's busy time, counted from its ops, beside the causes of its idle time."""
    spans = windows.filter(pl.col("device_id").is_not_null())
    names = labels(trace)["device"]
    summaries = []
    for device_id, start_ns, end_ns in spans.iter_rows():
        span_ns = end_ns - start_ns
        busy_ns = intervals.total_ns(busy.filter(pl.col("device_id") == device_id))
        causes = {"unknown": span_ns - busy_ns}
        if idle is not None and idle.skipped is None:
            causes = dict(
                idle.frame.filter(pl.col("device_id") == device_id)
                .group_by("cause", maintain_order=True)
                .agg(pl.col("idle_ns").sum())
                .cast({"cause": pl.String})
                .iter_rows()
            )
        # Two ways of counting that meet nowhere before this line; a report that fails it would lie.
        parts_ns = busy_ns + sum(causes.values())
        assert span_ns == parts_ns, f"device {device_id}: span {span_ns} ns, parts {parts_ns} ns"
        name = names.get(device_id, "")
        summary = DeviceSummary(device_id, name, start_ns, span_ns, busy_ns, causes)
        parts = [part for part, _, _ in summary.parts()]
        touching = [mark for mark in marks if mark.touches_device(device_id, parts)]
        summaries.append(replace(summary, trust=touching))
    return summaries


def _findings(analysis: Analysis, section: Section) -> list[Finding]:
    ran = analysis.findings is not None and section.skipped is None
    return analysis.findings(section.frame) if ran and analysis.findings else []


def _deviceless(trace: Trace) -> list[Note]:
    query = trace.scan("ops").select(pl.col("device_id").null_count())
    count = trace.collect("ops", query).item()
    message = "Ops without a device are in no device's busy or idle time."
    return [Note("trace-ops.no-device", Severity.DATA_LOSS, message, count)] if count else []


def _held_against(against: Trace | None) -> list[Note]:
    if against is None:
        return []
    names = ", ".join(against.source_names)
    message = f"Where a row says `other trace`, the other side is from {names}, all of it."
    return [Note("report-against.other-trace", Severity.INFO, message)]


def _words(window: Window | None, origin_ns: int) -> str:
    if window is None:
        return "each device from its first to its last op"
    bounds = (format_time(at_ns, origin_ns) for at_ns in (window.start_ns, window.end_ns))
    return " to ".join(bounds) + (f", {window.found}" if window.found else "")
