"""Chains the stages, trace → windows → analyses → report: no arithmetic beyond assembling."""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from tracekit import intervals
from tracekit.analyses import Analysis, analyses, tables_of
from tracekit.errors import BadInput
from tracekit.findings import Finding, FindingSeverity
from tracekit.formats import Progress, silent
from tracekit.reports import DeviceSummary, Report, Section, labels
from tracekit.tables.identity import WINDOWS
from tracekit.tables.notes import Note, Severity
from tracekit.trace import Trace
from tracekit.units import Unit, format_number, format_time, parse_duration

IDLE_GAPS = "idle-gaps"
_WORST_FIRST = (FindingSeverity.CRITICAL, FindingSeverity.WARNING, FindingSeverity.INFO)
_WINDOW_FORMS = "START:END (10ms:20ms, 1.5s:, :-100us) or the text of a marker ('step 12')"


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a trace the user asked for, on the trace's clock, and what was found by text."""

    start_ns: int
    end_ns: int
    found: str = ""


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


def window_named(trace: Trace, text: str) -> Window:
    """Return the window that the user's words mean.

    `START:END` counts from the trace's first op; either side may be left out, and a negative one
    counts from the end of its last op. Anything else is the text of markers, or failing that of
    operators and Python frames: from the first to the last that holds it, as whole words if any
    does.

    Raises:
        BadInput: No marker holds the text, or the window is empty.
    """
    first_ns, last_ns = _extent(trace)
    sides = text.split(":")
    numbers = [parse_duration(side) if side.strip() else None for side in sides]
    is_numeric = all(n is not None or not s.strip() for n, s in zip(numbers, sides, strict=True))
    if len(sides) != 2 or not is_numeric:
        return _window_of_marker(trace, text, first_ns)
    start_ns, end_ns = (
        default if number is None else (last_ns if number < 0 else first_ns) + number
        for number, default in zip(numbers, (first_ns, last_ns), strict=True)
    )
    if start_ns >= end_ns:
        between = f"{format_time(start_ns, first_ns)} to {format_time(end_ns, first_ns)}"
        extent = format_number(last_ns - first_ns, Unit.DURATION)
        remedy = f"The trace is {extent} long; give {_WINDOW_FORMS}"
        raise BadInput(f"--window {text}", f"is empty ({between})", remedy)
    return Window(start_ns, end_ns)


def _window_of_marker(trace: Trace, text: str, first_ns: int) -> Window:
    ranges = trace.table("ranges").filter(pl.col("text").is_not_null())
    markers = ranges.filter(pl.col("kind") == "marker")
    words = pl.col("text").str.contains(rf"(^|\W){re.escape(text)}(\W|$)")
    within = pl.col("text").str.contains(text, literal=True)
    where = f"--window {text}"
    for rows in (markers, ranges):
        for rule in (words, within):
            hits = rows.filter(rule) if text.strip() else rows.clear()
            if not hits.is_empty():
                return _window_of(hits, text, where, first_ns)
    raise BadInput(where, "no marker of this trace holds this text", f"Give {_WINDOW_FORMS}")


def _window_of(hits: pl.DataFrame, text: str, where: str, first_ns: int) -> Window:
    start_ns, end_ns = hits.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    if start_ns >= end_ns:
        at = format_time(start_ns, first_ns)
        raise BadInput(where, f"is an instant (at {at}), not a range", f"Give {_WINDOW_FORMS}")
    if hits.height == 1:
        return Window(start_ns, end_ns, f"the range {hits['text'][0]!r}")
    return Window(
        start_ns, end_ns, f"{hits.height} ranges hold {text!r}: from the first to the last"
    )


def _work(trace: Trace) -> pl.DataFrame:
    """Return the ops that count as busy: on a known device, and not a barrier."""
    ops = trace.table("ops")
    return ops.filter(pl.col("device_id").is_not_null() & (pl.col("kind") != "barrier"))


def _extent(trace: Trace) -> tuple[int, int]:
    """Return the start of the first and the end of the last op.

    Raises:
        BadInput: The trace holds no ops.
    """
    work = _work(trace)
    if work.is_empty():
        raise _no_work(trace)
    first_ns, last_ns = work.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    return first_ns, last_ns


def _no_work(trace: Trace) -> BadInput:
    where = ", ".join(map(_printable, trace.sources))
    lost = [n for n in trace.notes if n.severity in {Severity.DATA_LOSS, Severity.ERROR}]
    if lost:
        return BadInput(where, "holds no GPU work, because rows were lost", lost[0].message)
    return BadInput(
        where,
        "holds no GPU work, so there is no GPU time to explain",
        "Record again with kernels switched on (rocprofv3 --kernel-trace; ProfilerActivity.CUDA), "
        "or look at what is there: tracekit info",
    )


def windows_frame(trace: Trace, window: Window | None) -> pl.DataFrame:
    """Return the `windows` table: each device's first to last op, cut to the user's window.

    A device that did nothing inside the window has no row. The host's row (device null) is the
    user's window, or unbounded.

    Raises:
        BadInput: The trace holds no ops, or none of its devices reaches into the window.
    """
    first_ns, last_ns = _extent(trace)
    spans = (
        _work(trace)
        .group_by("device_id")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .sort("device_id")
    )
    host: dict[str, int | None] = {"device_id": None, "start_ns": None, "end_ns": None}
    if window is not None:
        host |= {"start_ns": window.start_ns, "end_ns": window.end_ns}
        spans = spans.with_columns(
            start_ns=pl.max_horizontal("start_ns", pl.lit(window.start_ns)),
            end_ns=pl.min_horizontal("end_ns", pl.lit(window.end_ns)),
        ).filter(pl.col("start_ns") < pl.col("end_ns"))
    if spans.is_empty():
        length = format_number(last_ns - first_ns, Unit.DURATION)
        raise BadInput(
            "--window", "no device did anything in it", f"The ops of this trace span {length}"
        )
    return pl.concat([WINDOWS.conform(spans), pl.DataFrame([host], schema=WINDOWS.schema)])


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
    known = analyses() if known is None else known
    # What explains the summary comes first, the others by name.
    ordered = sorted(known, key=lambda name: (name != IDLE_GAPS, name))
    wanted = [closest(name, known, "analysis") for name in dict.fromkeys(only)] or ordered
    windows = windows_frame(trace, window)
    origin_ns, _ = _extent(trace)
    notes = [*trace.notes, *_deviceless(trace)]
    sections: dict[str, Section] = {}
    findings: list[Finding] = []
    to_run = list(dict.fromkeys([*wanted, *({IDLE_GAPS} & set(known))]))
    for done, name in enumerate(to_run):
        progress(done, len(to_run), name)
        section, caveats = _run(known[name], trace, windows)
        sections[name] = section
        if name in wanted:
            notes += caveats
            findings += _findings(known[name], section)
    progress(len(to_run), len(to_run), "done")
    return Report(
        sources=[_printable(source) for source in trace.sources],
        format_name=trace.format_name,
        window=_words(window, origin_ns),
        notes=list(dict.fromkeys(notes)),
        devices=_summaries(trace, windows, sections.get(IDLE_GAPS)),
        sections=[sections[name] for name in wanted],
        findings=sorted(findings, key=lambda finding: _WORST_FIRST.index(finding.severity)),
        origin_ns=origin_ns,
        labels=labels(trace),
    )


def _run(analysis: Analysis, trace: Trace, windows: pl.DataFrame) -> tuple[Section, list[Note]]:
    missing = [name for name in analysis.needs if trace.table(name).is_empty()]
    if missing:
        needs = f"needs {', '.join(missing)}"
        empty = analysis.table.empty()
        return Section(analysis.name, analysis.question, analysis.table, empty, needs), []

    def tables(function: Callable[..., object]) -> dict[str, pl.DataFrame]:
        return {n: windows if n == "windows" else trace.table(n) for n in tables_of(function)}

    frame = analysis.table.conform(analysis.compute(**tables(analysis.compute)))
    caveats = analysis.caveats
    notes = caveats(**tables(caveats)) if caveats else []
    return Section(analysis.name, analysis.question, analysis.table, frame), notes


def _summaries(trace: Trace, windows: pl.DataFrame, idle: Section | None) -> list[DeviceSummary]:
    """Return each device's busy time, counted from its ops, beside the causes of its idle time."""
    spans = windows.filter(pl.col("device_id").is_not_null())
    busy = intervals.clip(intervals.union(_work(trace), ["device_id"]), spans, ["device_id"])
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
    count = trace.table("ops")["device_id"].null_count()
    message = "Ops without a device are in no device's busy or idle time."
    return [Note("trace-ops.no-device", Severity.DATA_LOSS, message, count)] if count else []


def _words(window: Window | None, origin_ns: int) -> str:
    if window is None:
        return "each device from its first to its last op"
    bounds = (format_time(at_ns, origin_ns) for at_ns in (window.start_ns, window.end_ns))
    return " to ".join(bounds) + (f", {window.found}" if window.found else "")


def _printable(source: str) -> str:
    # A path may hold bytes that are no UTF-8; reports are UTF-8.
    return source.encode("utf-8", "replace").decode()
