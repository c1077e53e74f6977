"""Which ops stood behind a wait of their stream, and which may have."""

import polars as pl

from tracekit.api_calls import untold_waits
from tracekit.idle_time.gaps import is_first_of_call
from tracekit.intervals.matching import nearest
from tracekit.tables.rows import rows_of

# Stands for the stream of an op whose stream is not known.
_NONE = -1


def awaited_ops(submitted: pl.DataFrame, calls: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """Return `op_id, until_ns`: for the op right behind a wait, when the awaited work was done.

    An op stands behind a wait by the stream that its call names, which for a branch of a graph is
    another than the op's own, and by the op's stream where the call names none.
    """
    asked = waits.select(
        "wait_call_id",
        "recording_stream_id",
        stream_id="waiting_stream_id",
        until_ns="pending_end_ns",
    ).drop_nulls(["wait_call_id", "stream_id", "until_ns"])
    asked = asked.filter(pl.col("stream_id").ne_missing(pl.col("recording_stream_id")))
    called = rows_of(asked["wait_call_id"], calls.select("call_id", asked_ns="start_ns"), "call_id")
    asked = asked.hstack(called).drop_nulls("asked_ns").sort("asked_ns")
    if asked.is_empty():
        return asked.select(pl.lit(None, pl.Int64).alias("op_id"), "until_ns")
    found = nearest(
        asked.select("asked_ns", "stream_id", "until_ns"),
        _first_of_calls(submitted, calls).drop_nulls("stream_id"),
        left_on="asked_ns",
        right_on="call_start_ns",
        by=["stream_id"],
        strategy="forward",
    )
    return found.drop_nulls("op_id").group_by("op_id").agg(pl.col("until_ns").max())


def maybe_waiting(
    submitted: pl.DataFrame, calls: pl.DataFrame, waits: pl.DataFrame, lost: pl.DataFrame
) -> pl.Series:
    """Return the ops right behind a wait of which the trace does not say what it was for.

    Where it does not say either which stream was made to wait, that is the next op of each stream;
    and an op whose stream is not known may be of any. So may any behind a call that is lost
    (`Unseen.waits`).
    """
    asked = untold_waits(calls, waits).select("process_id", "stream_id", asked_ns="start_ns")
    missing = lost.select("process_id", asked_ns="end_ns")
    asked = pl.concat([asked, missing], how="diagonal_relaxed")
    if asked.is_empty():
        return pl.Series([], dtype=pl.Int64)
    first = _first_of_calls(submitted, calls).with_columns(pl.col("stream_id").fill_null(_NONE))
    lanes = first.select("process_id", lane="stream_id").unique()
    may_wait = pl.col("stream_id").is_null() | (pl.col("lane") == _NONE)
    may_wait |= pl.col("stream_id") == pl.col("lane")
    each = asked.join(lanes, on="process_id", nulls_equal=True).filter(may_wait)
    found = nearest(
        each.select("asked_ns", "process_id", stream_id="lane").sort("asked_ns"),
        first,
        left_on="asked_ns",
        right_on="call_start_ns",
        by=["process_id", "stream_id"],
        strategy="forward",
    )
    return found["op_id"].drop_nulls().unique()


def _first_of_calls(submitted: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return `process_id, stream_id, op_id, call_start_ns` of the first op of each call, in order.

    The stream is the one that the call names, else the op's.
    """
    launched = submitted.select(
        "process_id", "op_id", "stream_id", "call_id", "call_start_ns"
    ).filter(is_first_of_call(submitted, calls))
    streams = rows_of(launched["call_id"], calls.select("call_id", launch="stream_id"), "call_id")
    return (
        launched.with_columns(stream_id=streams["launch"].fill_null(launched["stream_id"]))
        .select("process_id", "stream_id", "op_id", "call_start_ns")
        .sort("call_start_ns", maintain_order=True)
    )
