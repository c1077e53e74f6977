"""Chains the stages, trace → windows → analyses → report: no arithmetic beyond assembling."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import polars as pl

from tracekit import intervals
from tracekit.analyses import Analysis, analyses, call_with_tables, fingerprint, tables_of
from tracekit.errors import BadInput
from tracekit.findings import Finding, FindingSeverity
from tracekit.formats import Progress, silent
from tracekit.reports import DeviceSummary, Report, Section, labels
from tracekit.tables.notes import Note, Severity
from tracekit.trace import DAMAGE, StoredResult, StoredResults, Trace
from tracekit.units import format_time
from tracekit.windows import Window, device_spans, extent, windows_frame, work_of

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
    progress: Progress = silent,
    known: Mapping[str, Analysis] | None = None,
) -> Report:
    """Return the report of a trace: every analysis, or the ones named.

    The summary of devices needs idle-gaps, so it runs even where `only` leaves it out.

    Args:
        trace: What was read.
        only: Names of analyses; empty for all.
        window: Part of the trace to look at; None for all of it.
        progress: Told which analysis is running.
        known: Analyses by name; those of the room if None.

    Raises:
        BadInput: An analysis is not known, the trace holds no ops, or the window holds none.
    """
    stored = _stored(trace) if window is None and known is None else {}
    known = analyses() if known is None else known
    # What explains the summary comes first, the others by name.
    ordered = sorted(known, key=lambda name: (name != IDLE_GAPS, name))
    wanted = [closest(name, known, "analysis") for name in dict.fromkeys(only)] or ordered
    spans = device_spans(trace)
    windows = windows_frame(spans, window)
    origin_ns, _ = extent(spans)
    notes = [*trace.notes, *_deviceless(trace)]
    sections: dict[str, Section] = {}
    findings: list[Finding] = []
    to_run = list(dict.fromkeys([*wanted, *({IDLE_GAPS} & set(known))]))
    for done, name in enumerate(to_run):
        progress(done, len(to_run), name)
        section, caveats = _run(known[name], trace, windows, stored.get(name))
        sections[name] = section
        if name in wanted:
            notes += caveats
            findings += _findings(known[name], section)
    progress(len(to_run), len(to_run), "done")
    return Report(
        sources=trace.source_names,
        format_name=trace.format_name,
        window=_words(window, origin_ns),
        notes=list(dict.fromkeys(notes)),
        devices=_summaries(trace, windows, sections.get(IDLE_GAPS)),
        sections=[sections[name] for name in wanted],
        findings=sorted(findings, key=lambda finding: _WORST_FIRST.index(finding.severity)),
        origin_ns=origin_ns,
        labels=labels(trace),
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
    analysis: Analysis, trace: Trace, windows: pl.DataFrame, stored: StoredResult | None = None
) -> tuple[Section, list[Note]]:
    kept = None if stored is None else _kept(analysis, stored)
    if kept is not None:
        return kept
    missing = [name for name in analysis.needs if trace.table(name).is_empty()]
    if missing:
        needs = f"needs {', '.join(missing)}"
        return _section(analysis, analysis.table.empty(), needs), []
    caveats = analysis.caveats
    needed = {*tables_of(analysis.compute), *(tables_of(caveats) if caveats else ())}
    frames = {name: windows if name == "windows" else trace.table(name) for name in needed}
    frame = analysis.table.conform(call_with_tables(analysis.compute, frames))
    notes = call_with_tables(caveats, frames) if caveats else []
    return _section(analysis, frame), notes


def _section(analysis: Analysis, frame: pl.DataFrame, skipped: str | None = None) -> Section:
    return Section(analysis.name, analysis.question, analysis.table, frame, skipped)


def _summaries(trace: Trace, windows: pl.DataFrame, idle: Section | None) -> list[DeviceSummary]:
    """Return each device's busy time, counted from its ops, beside the causes of its idle time."""
    spans = windows.filter(pl.col("device_id").is_not_null())
    busy = intervals.clip(intervals.union(work_of(trace), ["device_id"]), spans, ["device_id"])
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
        summaries.append(DeviceSummary(device_id, name, start_ns, span_ns, busy_ns, causes))
    return summaries


def _findings(analysis: Analysis, section: Section) -> list[Finding]:
    ran = analysis.findings is not None and section.skipped is None
    return analysis.findings(section.frame) if ran and analysis.findings else []


def _deviceless(trace: Trace) -> list[Note]:
    query = trace.scan("ops").select(pl.col("device_id").null_count())
    count = trace.collect("ops", query).item()
    message = "Ops without a device are in no device's busy or idle time."
    return [Note("trace-ops.no-device", Severity.DATA_LOSS, message, count)] if count else []


def _words(window: Window | None, origin_ns: int) -> str:
    if window is None:
        return "each device from its first to its last op"
    bounds = (format_time(at_ns, origin_ns) for at_ns in (window.start_ns, window.end_ns))
    return " to ".join(bounds) + (f", {window.found}" if window.found else "")
