"""The marks of a trace written as aligned text, by code."""

import polars as pl
import pytest
from healthy_trace import CALLS, OPS, PROCESSES, RANGES

from tracekit import intervals
from tracekit.trace import Trace
from tracekit.trust import trust_marks
from tracekit.windows import device_spans, windows_frame, work_of


@pytest.fixture
def marks(frame):
    """Return `marks(notes=…, window=…, collected=…, table=text, …)`: code → mark.

    Tables left out are those of a trace in which nothing is wrong. Codes are without `trust-`.
    """

    def found(notes=(), window=None, collected=None, cycle_times=None, **texts):
        known = {"ops": OPS, "calls": CALLS, "ranges": RANGES, "processes": PROCESSES} | texts
        frames = {name: frame(name, text) for name, text in known.items() if text}
        if collected:
            lists = pl.Series("collected", collected, pl.List(pl.String))
            frames["processes"] = frames["processes"].with_columns(lists)
        trace = Trace.from_frames(frames, notes=notes, sources=["t"], format_name="kineto")
        trace.cycle_times = cycle_times
        return found_in(trace, window)

    return found


@pytest.fixture
def marks_of():
    """Return `marks_of(trace, window)`: code → mark, codes without `trust-`."""
    return found_in


def found_in(trace, window=None):
    windows = windows_frame(device_spans(trace), window)
    spans = windows.filter(pl.col("device_id").is_not_null())
    busy = intervals.clip(intervals.union(work_of(trace), ["device_id"]), spans, ["device_id"])
    found = trust_marks(trace, windows, busy)
    codes = [mark.code.removeprefix("trust-") for mark in found]
    assert len(codes) == len(set(codes))
    return dict(zip(codes, found, strict=True))
