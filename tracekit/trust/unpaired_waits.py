"""Waits of a stream for an event of which the trace has the call only, or no record."""

import polars as pl

from tracekit.api_calls import stream_waits, untold_waits
from tracekit.intervals import overlapping_host
from tracekit.trust import Check, Found, Touches, any_of

# From CUDA 12.9 on, PyTorch's profiler no longer asks which record a wait is for
# (pytorch/kineto#1552), whatever it is told.
_ADVICE = (
    "to see them, record with rocprofv3, or mark records and waits (docs/markers.md); before CUDA "
    "12.9 torch's enable_cuda_sync_events=True does, too"
)


def unpaired_waits(calls: pl.DataFrame, waits: pl.DataFrame, windows: pl.DataFrame) -> list[Found]:
    """Find the calls that make a stream wait for which no wait, or only one of no record, is known.

    A wait is of no record when the call that recorded its event is not known and nor is when it was
    over.
    """
    asked = overlapping_host(stream_waits(calls), windows).height
    untold = untold_waits(calls, waits)
    unpaired = overlapping_host(untold, windows).height
    if not unpaired:
        return []
    # What to do differs where nothing was recorded from where a part was lost.
    advice = f"; {_ADVICE}" if untold.height == stream_waits(calls).height else ""
    return [
        Found(
            f"{unpaired:,} of {asked:,} calls that make a stream wait for an event have no wait "
            "with its record in the trace: why the device idled before what they may have held is "
            "unknown" + advice,
            {"unpaired_waits": unpaired, "asked_waits": asked},
        )
    ]


CHECK = Check(
    code="trust-waits.unpaired",
    label="waits of streams not known",
    touches=Touches(reads=any_of("waits"), parts=frozenset({"unknown", "queue-wait"})),
    find=unpaired_waits,
    notes=(
        "idle-gaps.waits-unknown",
        "rocpd.waits-not-recorded",
        "kineto.waits-unknown",
        "kineto.waits-not-collected",
    ),
)
