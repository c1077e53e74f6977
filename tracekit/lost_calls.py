"""Calls that a trace shows to have been made and does not hold.

Evidence is a number that was given out (`call_numbers`, on HIP), a marker that says that the host
waited or a stream was made to, and an operator that reads a value of the device without a wait.
(CUPTI's own rows about waits stand for their calls, see `formats.kineto.activity`.)

CUPTI gives numbers to more than is recorded, so that a hole in them proves nothing. But in a
process of which a share of the calls is proven lost, there may be one in every hole.

Where calls that only wait are lost and the trace has neither markers nor rows about waiting, no
trace of CUDA shows it.
"""

import polars as pl

from tracekit.api_calls import BLOCKING_KINDS, WAITS_ALONE
from tracekit.call_numbers import missing_calls, numbered_processes
from tracekit.intervals.matching import nearest
from tracekit.remembered import remembered

# A synchronise call that finds its work done returned in 1 to 33 µs under a profiler (one NVIDIA
# H200, torch 2.11); one that waits for a forward pass takes hundreds.
MIN_UNNAMED_WAIT_NS = 40_000

# Below this share of lost calls a hole in CUPTI's numbers is far more likely a call that is never
# recorded than one that was lost.
MIN_LOST_SHARE = 0.01

# Polled or waited for in another way, an event's work is done without a call of its own.
_WAITED_OTHERWISE = ("event_query", "stream_sync", "device_sync")
# PyTorch's own: copies a value to the host asynchronously, and waits for it.
_READS_VALUE = "aten::_local_scalar_dense"
_PROCESS, _THREAD = ["process_id"], ["process_id", "thread_id"]
LOST = pl.Schema({"process_id": pl.Int32(), "thread_id": pl.Int64(), "end_ns": pl.Int64()})


@remembered
def lost_calls(
    ops: pl.DataFrame, calls: pl.DataFrame, marks: pl.DataFrame, ranges: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the lost calls that may have held their thread, and those that may have held a stream.

    Calls before the first recorded one are not known to have been any.

    Returns:
        Two frames, `process_id, thread_id` (null: any), `end_ns` (by when it had returned).
    """
    nowhere = pl.lit(None, pl.Int64)
    missing = missing_calls(calls, ranges).filter(~pl.col("is_first"))
    numbered = missing.select("process_id", thread_id=nowhere, end_ns="start_ns")
    # A row that stands for its call may not say which thread it was.
    placeless = calls.filter(pl.col("thread_id").is_null() & pl.col("kind").is_in(BLOCKING_KINDS))
    told = waits_without_calls(marks, calls).select(*_THREAD, "statement", end_ns="time_ns")
    of_host = pl.col("statement") == "sync"
    reads = _reads(calls, ranges)
    lossy = _losing(ops, calls, marks, reads)
    holes = _holes(calls, lossy).select(*_THREAD, "is_long", end_ns="start_ns")
    held = [
        numbered,
        told.filter(of_host),
        placeless,
        reads.filter("is_lost"),
        holes.filter("is_long"),
    ]
    waited = [numbered, told.filter(~of_host), holes]
    return pl.concat(map(conform, held)), pl.concat(map(conform, waited))


def conform(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the columns of `LOST`."""
    return frame.select(pl.col(name).cast(dtype) for name, dtype in LOST.items())


def waits_without_calls(marks: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the markers of a wait whose call is not there, nor another that it can be about.

    Args:
        marks: The `marks` table.
        calls: The `calls` table.
    """
    alone = _within_recording(marks, calls).filter(
        pl.col("statement").is_in(["sync", "wait"]) & pl.col("call_id").is_null()
    )
    if alone.is_empty():
        return alone
    last = nearest(
        alone.sort("time_ns"),
        calls.select(*_THREAD, "kind", at="start_ns").sort("at"),
        left_on="time_ns",
        right_on="at",
        by=_THREAD,
    )
    is_other = pl.col("kind").is_in(_WAITED_OTHERWISE).fill_null(value=False)
    return last.filter((pl.col("statement") == "wait") | ~is_other)


def _reads(calls: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the operators that read a value and copied it, and whether the wait `is_lost`."""
    reads = ranges.filter(pl.col("text") == _READS_VALUE).select(*_THREAD, "start_ns", "end_ns")
    if reads.is_empty():
        return reads.with_columns(is_lost=pl.lit(value=False))
    found = reads.sort("end_ns")
    name = pl.col("name").cast(pl.String)
    is_copy = (pl.col("kind") == "copy") & name.str.contains("Async")
    for column, kinds in (("copied", is_copy), ("waited", pl.col("kind").is_in(BLOCKING_KINDS))):
        made = calls.filter(kinds).select(*_THREAD, pl.col("start_ns").alias(column)).sort(column)
        found = nearest(found, made, left_on="end_ns", right_on=column, by=_THREAD)
    is_lost = (pl.col("waited") < pl.col("copied")).fill_null(value=True)
    return found.filter(pl.col("copied") >= pl.col("start_ns")).with_columns(is_lost=is_lost)


def _within_recording(marks: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the markers that come after some call of their thread: before it, none is lost."""
    if marks.is_empty():
        return marks
    first = calls.group_by(_THREAD).agg(first_ns=pl.col("start_ns").min())
    placed = marks.join(first, on=_THREAD)
    return placed.filter(pl.col("time_ns") >= pl.col("first_ns")).select(marks.columns)


def _holes(calls: pl.DataFrame, lossy: pl.Series) -> pl.DataFrame:
    """Return the calls before which one of their thread may be lost, in CUDA's lossy processes.

    Since the thread's call before, a number was given out that no call has. `is_long`: time enough
    went by for a call to have waited.
    """
    lossy = lossy.filter(~lossy.is_in(numbered_processes(calls).implode()))
    place, number = pl.int_range(pl.len()).over(_PROCESS), pl.col("correlation_id")
    ordered = (
        calls.filter(pl.col("process_id").is_in(lossy.implode()))
        .drop_nulls(["thread_id", "correlation_id"])
        .unique([*_PROCESS, "correlation_id"], keep="first", maintain_order=True)
        .sort("process_id", "correlation_id")
        .with_columns(skipped=number - place)
    )
    before = ordered.select(pl.col("skipped", "end_ns").shift(1).over(_THREAD))
    is_long = ordered["start_ns"] - before["end_ns"] >= MIN_UNNAMED_WAIT_NS
    return ordered.with_columns(is_long=is_long).filter(ordered["skipped"] > before["skipped"])


def _losing(
    ops: pl.DataFrame, calls: pl.DataFrame, marks: pl.DataFrame, reads: pl.DataFrame
) -> pl.Series:
    """Return the processes that lost calls of which nothing else may tell.

    `MIN_LOST_SHARE` of their launches is lost; or of their waits, unless of every recorded wait a
    row or marker says what it was for: then of a lost one, too, there is one.
    """
    waiting = calls.filter(pl.col("kind").is_in([*BLOCKING_KINDS, "event_wait"]))
    alone = pl.col("name").cast(pl.String).is_in(WAITS_ALONE)
    no_call = pl.col("call_id").is_null()
    lost = waits_without_calls(marks, calls)["range_id"]
    is_polled = (pl.col("statement") == "sync") & ~pl.col("range_id").is_in(lost.implode())
    told = [
        waiting.select("process_id", is_lost=alone),
        _within_recording(marks, calls).select("process_id", is_lost=no_call & ~is_polled),
        reads.select("process_id", "is_lost"),
    ]
    named = pl.col("stream_id").is_not_null() | pl.col("event_key").is_not_null()
    can_be_named = waiting.filter(pl.col("kind") != "device_sync").group_by("process_id")
    complete = can_be_named.agg(named.all().alias("all")).filter("all")["process_id"]
    waits = _losing_most(pl.concat(told))
    return pl.concat(
        [
            _losing_most(_launched(ops, calls)),
            waits.filter(~waits.is_in(complete.implode())),
        ]
    ).unique()


def _losing_most(told: pl.DataFrame) -> pl.Series:
    shares = told.group_by("process_id").agg(share=pl.col("is_lost").mean())
    return shares.filter(pl.col("share") >= MIN_LOST_SHARE)["process_id"].drop_nulls()


def _launched(ops: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return `process_id, is_lost` of the ops whose call should be there; none if too few are lost.

    Kernels of one name are launched in one way. Where none of them has its call, calls of that kind
    are not recorded, which is no loss. One launch of each thread may be cut off where recording
    begins.
    """
    is_lost = ops["call_id"].is_null()
    some = ops.filter(is_lost) if is_lost.any() else ops.clear()
    if some.is_empty():
        return some.select("process_id", is_lost=pl.lit(value=False))
    first = calls.group_by("process_id").agg(first=pl.col("correlation_id").min())
    named = [*_PROCESS, "name"]
    later = some.join(first, on=_PROCESS).filter(pl.col("correlation_id") > pl.col("first"))
    called = ops.filter(~is_lost).join(later.select(named).unique(), on=named, how="semi")
    lost = later.join(called.select(named).unique(), on=named, how="semi")
    threads = calls.group_by("process_id").agg(threads=pl.col("thread_id").n_unique())
    counted = lost.group_by("process_id").agg(lost=pl.col("correlation_id").n_unique())
    several = counted.join(threads, on=_PROCESS).filter(pl.col("lost") > pl.col("threads"))
    lost = lost.join(several, on=_PROCESS, how="semi")
    return pl.concat(
        [
            lost.select("process_id", is_lost=pl.lit(value=True)),
            called.select("process_id", is_lost=pl.lit(value=False)),
        ]
    )
