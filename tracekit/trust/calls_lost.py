"""Numbers that no recorded call has, where a profiler numbers the calls of a process in a row."""

import polars as pl

from tracekit.call_numbers import missing_calls, numbered_processes
from tracekit.intervals import overlapping_host
from tracekit.trust import Check, Found, Touches, any_of
from tracekit.units import Unit, format_number


def lost_calls(calls: pl.DataFrame, ranges: pl.DataFrame, windows: pl.DataFrame) -> list[Found]:
    """Find the numbers missing between the calls of each process that numbers them in a row.

    What is missing before the first call was made before recording began, as far as one can tell.
    """
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
)
