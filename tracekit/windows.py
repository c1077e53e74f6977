"""Which part of a trace is looked at: the time that every share refers to, and its words."""

import re
from dataclasses import dataclass

import polars as pl

from tracekit.errors import BadInput
from tracekit.tables.identity import WINDOWS
from tracekit.tables.notes import Severity
from tracekit.trace import Trace
from tracekit.units import Unit, format_number, format_time, parse_duration

LARGEST_NS = 1 << 62  # 146 years; what is added to it still fits the columns
_WINDOW_FORMS = "START:END (10ms:20ms, 1.5s:, :-100us) or the text of a marker ('step 12')"


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a trace the user asked for, on the trace's clock, and what was found by text."""

    start_ns: int
    end_ns: int
    found: str = ""


def window_named(trace: Trace, text: str) -> Window:
    """Return the window that the user's words mean.

    `START:END` counts from the trace's first op; either side may be left out, and a negative one
    counts from the end of its last op. Anything else is the text of markers, or failing that of
    operators and Python frames: from the first to the last that holds it, as whole words if any
    does.

    Raises:
        BadInput: No marker holds the text, or the window is empty.
    """
    first_ns, last_ns = extent(device_spans(trace))
    sides = text.split(":")
    numbers = [parse_duration(side) if side.strip() else None for side in sides]
    is_numeric = all(n is not None or not s.strip() for n, s in zip(numbers, sides, strict=True))
    if len(sides) != 2 or not is_numeric:
        return _window_of_marker(trace, text, first_ns)
    start_ns, end_ns = (
        default if number is None else (last_ns if number < 0 else first_ns) + number
        for number, default in zip(numbers, (first_ns, last_ns), strict=True)
    )
    if max(abs(start_ns), abs(end_ns)) > LARGEST_NS:
        raise BadInput(f"--window {text}", "is beyond any clock", f"Give {_WINDOW_FORMS}")
    if start_ns >= end_ns:
        between = f"{format_time(start_ns, first_ns)} to {format_time(end_ns, first_ns)}"
        length = format_number(last_ns - first_ns, Unit.DURATION)
        remedy = f"The trace is {length} long; give {_WINDOW_FORMS}"
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


def work_of(trace: Trace) -> pl.DataFrame:
    """Return device, start and end of the ops that count as busy: no barriers, a known device."""
    return trace.collect("ops", _work(trace))


def _work(trace: Trace) -> pl.LazyFrame:
    counts = pl.col("device_id").is_not_null() & (pl.col("kind") != "barrier")
    return trace.scan("ops").filter(counts).select("device_id", "start_ns", "end_ns")


def device_spans(trace: Trace) -> pl.DataFrame:
    """Return `device_id, start_ns, end_ns` of each device's first to last op, by device.

    Raises:
        BadInput: The trace holds no ops.
    """
    reach = _work(trace).group_by("device_id").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    spans = trace.collect("ops", reach.sort("device_id"))
    if spans.is_empty():
        raise _no_work(trace)
    return spans


def extent(spans: pl.DataFrame) -> tuple[int, int]:
    """Return the start of the first and the end of the last op, from `device_spans`."""
    first_ns, last_ns = spans.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    return first_ns, last_ns


def _no_work(trace: Trace) -> BadInput:
    where = ", ".join(trace.source_names)
    lost = [n for n in trace.notes if n.severity in {Severity.DATA_LOSS, Severity.ERROR}]
    if lost:
        return BadInput(where, "holds no GPU work, because rows were lost", lost[0].message)
    return BadInput(
        where,
        "holds no GPU work, so there is no GPU time to explain",
        "Record again with kernels switched on (rocprofv3 --kernel-trace; ProfilerActivity.CUDA), "
        "or look at what is there: tracekit info",
    )


def windows_frame(spans: pl.DataFrame, window: Window | None) -> pl.DataFrame:
    """Return the `windows` table: each device's first to last op, cut to the user's window.

    A device that did nothing inside the window has no row. The host's row (device null) is the
    user's window, or unbounded.

    Args:
        spans: `device_spans`.
        window: The user's window, if any.

    Raises:
        BadInput: None of the devices reaches into the window.
    """
    first_ns, last_ns = extent(spans)
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
