"""Calls that are missing from a trace, told by the numbers of those that are there."""

import polars as pl

from tracekit.remembered import remembered

# Where numbers fall behind what was counted by more than threads can mix them up, what was counted
# does not take numbers.
_MIXED_UP = 8
_FIRST_NUMBER = 1


@remembered
def missing_calls(calls: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    """Return where calls are missing, and how many: a row for each call that follows on some.

    HIP's profilers number calls one by one from 1, and rocprofv3 numbers markers along with them;
    CUPTI leaves numbers out, so nothing is said of a process that calls CUDA. A marker that is
    missing counts as a call. What is missing after the last call leaves no trace.

    Returns:
        `process_id, thread_id, start_ns` (of the call that follows), `missing`, `is_first` (no call
        was recorded before: recording began late, or more was lost).
    """
    numbered = _numbered(calls)
    parts = [
        _with_missing(part, ranges.filter(process_id=process))
        for (process,), part in numbered.partition_by("process_id", as_dict=True).items()
    ]
    columns = ["process_id", "thread_id", "start_ns"]
    nothing = calls.clear().select(*columns, missing=pl.lit(0), is_first=pl.lit(value=False))
    return pl.concat(
        [nothing, *(part.select(nothing.columns) for part in parts)], how="vertical_relaxed"
    )


@remembered
def numbered_processes(calls: pl.DataFrame) -> pl.Series:
    """Return the processes in which a missing call leaves a hole in the numbers.

    Those that call HIP: others take numbers of the same row, too.
    """
    named = calls.select("process_id", "name").unique()
    hip = named.filter(pl.col("name").cast(pl.String).str.starts_with("hip"))["process_id"].unique()
    has_number = pl.col("correlation_id").is_not_null()
    some = calls.select(pl.col("process_id").filter(has_number).unique()).to_series()
    return hip.filter(hip.is_in(some.implode(), nulls_equal=True))


def _numbered(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of processes in which a missing one leaves a hole in the numbers."""
    numbered = numbered_processes(calls)
    return calls.select("process_id", "thread_id", "start_ns", "correlation_id").filter(
        pl.col("process_id").is_in(numbered.implode(), nulls_equal=True),
        pl.col("correlation_id").is_not_null(),
    )


def _with_missing(calls: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the calls before which numbers were given out that no call has.

    Before the first one none but those of markers were.

    A marker and a call that begin on one clock tick, or in two threads at nearly one time, may be
    counted the wrong way round. So what counts is the number of missing calls that is never undone
    by a later one.
    """
    ordered = calls.sort("correlation_id")
    markers = ranges.filter(pl.col("kind").cast(pl.String) != "frame")["start_ns"].sort()
    if markers.is_empty() and ordered.select((pl.col("correlation_id").diff() == 1).all()).item():
        # Nothing is missing behind the first.
        ordered = ordered.head(1)
    rank = pl.int_range(pl.len(), dtype=pl.Int64)
    missing = ordered.select(pl.col("correlation_id") - rank).to_series()
    before = markers.search_sorted(ordered["start_ns"], side="right").cast(pl.Int64)
    unmarked = missing - before
    falls_behind = (unmarked.cum_max() - unmarked > _MIXED_UP).any()
    counted = missing if falls_behind else unmarked
    settled = counted.reverse().cum_min().reverse()
    grew = settled.diff().fill_null(settled - _FIRST_NUMBER)
    counted_first = ordered.with_columns(missing=grew, is_first=rank == 0)
    return counted_first.filter(pl.col("missing") > 0)
