"""Calls that are not in the trace: by the numbers of the others, or by markers about them."""

import polars as pl

from tracekit.call_numbers import missing_calls, numbered_processes
from tracekit.intervals import overlapping_host
from tracekit.lost_calls import waits_without_calls
from tracekit.trust import Check, Found, Touches, any_of
from tracekit.units import Unit, format_number


def lost_calls(
    calls: pl.DataFrame, marks: pl.DataFrame, ranges: pl.DataFrame, windows: pl.DataFrame
) -> list[Found]:
    """Find the numbers missing between the calls of each process that numbers them in a row.

    What is missing before the first call was made before recording began, as far as one can tell.
    On CUDA, where numbers say nothing, find the markers of waits whose call is not there.
    """
    return [*_by_number(calls, ranges, windows), *_by_marker(calls, marks, windows)]


def _by_marker(calls: pl.DataFrame, marks: pl.DataFrame, windows: pl.DataFrame) -> list[Found]:
    numbered = pl.col("process_id").is_in(numbered_processes(calls).implode(), nulls_equal=True)
    said = waits_without_calls(marks.filter(~numbered), calls)
    times = said.with_columns(start_ns="time_ns", end_ns=pl.col("time_ns") + 1)
    alone = overlapping_host(times, windows)
    if alone.is_empty():
        return []
    told = marks.filter(~numbered, pl.col("statement").is_in(["sync", "wait"]))
    spans = told.with_columns(start_ns="time_ns", end_ns=pl.col("time_ns") + 1)
    asked, lost = overlapping_host(spans, windows).height, alone.height
    share = format_number(lost / asked, Unit.SHARE)
    return [
        Found(
            f"{lost:,} of {asked:,} waits that markers tell of ({share}) have no host call "
            "in the trace: what else was lost, and what the host did then, is not known",
            {
                "lost_calls": lost,
                "told_calls": asked,
                "lost_share": lost / asked,
                "processes": alone["process_id"].n_unique(),
            },
        )
    ]


def _by_number(calls: pl.DataFrame, ranges: pl.DataFrame, windows: pl.DataFrame) -> list[Found]:
    missing = missing_calls(calls, ranges).filter(~pl.col("is_first"))
    lost = overlapping_host(missing.with_columns(end_ns=pl.col("start_ns") + 1), windows)
    if lost.is_empty():
        return []
    numbered = pl.col("process_id").is_in(numbered_processes(calls).implode(), nulls_equal=True)
    recorded = overlapping_host(calls, windows).select(numbered.sum()).item()
    return [_found(lost["process_id"].n_unique(), recorded, int(lost["missing"].sum()))]


def _found(processes: int, calls: int, lost: int) -> Found:
    share = lost / (calls + lost)
    return Found(
        f"{lost:,} host calls ({format_number(share, Unit.SHARE)}) are missing: the profiler "
        f"numbers calls in a row, and recorded are {calls:,}; what the host did then is not known",
        {
            "lost_calls": lost,
            "recorded_calls": calls,
            "lost_share": share,
            "processes": processes,
        },
    )


CHECK = Check(
    code="trust-calls.lost",
    label="host calls lost",
    touches=Touches(reads=any_of("calls"), parts=frozenset({"idle"})),
    find=lost_calls,
    notes=("idle-gaps.calls-lost",),
)
