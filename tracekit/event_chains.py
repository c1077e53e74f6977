"""When waits of streams for events begin and end, where the trace says only who waits for whom."""

from typing import Literal

import polars as pl

from tracekit.tables.activity import WAITS
from tracekit.tables.rows import rows_of

_ASKED = ["waiting_stream_id", "asked_at"]
_RECORDED = ["recording_stream_id", "recorded_at", "recorded_end_ns"]
# When all waits asked on a stream up to this one are over, as far as known.
_OVER = pl.col("pending_end_ns").cum_max().forward_fill().over("waiting_stream_id")
_BEFORE_RECORD = pl.col("over_ns").gather(pl.col("wait_before"))


def timed_waits(pairs: pl.DataFrame, calls: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return waits with when they were pending, and on which queues.

    A wait can begin when its call has been made and the stream's earlier work is done. It ends when
    the work submitted to the recording stream before the record is done, and what that stream
    waited for then (`chained_ends`).

    Args:
        pairs: `process_id, wait_call_id, waiting_stream_id, start_ns` and `called_ns` (begin and
            end of the wait's call), `record_call_id, recording_stream_id, record_start_ns` (null
            where the record is not known).
        calls: `call_id, stream_id, start_ns`.
        ops: `call_id, stream_id, queue_id, end_ns`.

    Returns:
        The columns of `WAITS` but `wait_id` and `evidence`, in the order of `pairs`.
    """
    frame = _timed(pairs, _submitted(calls, ops, pairs))
    placed = frame.rename({"start_ns": "asked_at", "record_start_ns": "recorded_at"})
    return frame.with_columns(chained_ends(placed)).select(
        name for name in WAITS.schema if name not in ("wait_id", "evidence")
    )


def chained_ends(waits: pl.DataFrame) -> pl.Series:
    """Return `pending_end_ns` of waits, followed through streams that only pass an event on.

    A record completes when the ops that its stream was given before it have ended and the waits
    that its stream was asked for before it are over. Those may hang on others in turn, so the ends
    are worked out in rounds until none changes: as many rounds as the longest chain of waits with
    no op between them (two or three as a rule, the number of waits at worst), each a running
    maximum per stream.

    Args:
        waits: `[waiting_stream_id, asked_at, recording_stream_id, recorded_at, recorded_end_ns,
            pending_start_ns]`. `asked_at` and `recorded_at` place the two calls in the order of
            submission, in one unit; calls at one place are not before each other.
            `recorded_end_ns` is the end of the ops given to the recording stream before the record.

    Returns:
        One end per row, in the order of `waits`, not before `pending_start_ns`; null where nothing
        is known that the record stands behind. An earlier wait whose end is unknown counts for
        nothing: where its stream was given no op behind it, the end may be too early.
    """
    ordered = waits.select(*_ASKED, *_RECORDED, "pending_start_ns").with_row_index("row")
    ordered = ordered.sort(*_ASKED, nulls_last=True)
    ordered = _with_wait_before_record(ordered.with_row_index("place"))
    ordered = ordered.with_columns(_pending_end(pl.col("recorded_end_ns")))
    while True:
        chained = ordered.with_columns(over_ns=_OVER).with_columns(
            _pending_end(pl.max_horizontal("recorded_end_ns", _BEFORE_RECORD))
        )
        if chained["pending_end_ns"].equals(ordered["pending_end_ns"]):
            return ordered.sort("row")["pending_end_ns"]
        ordered = chained


def _with_wait_before_record(ordered: pl.DataFrame) -> pl.DataFrame:
    """Add `wait_before`, the place of the recording stream's last wait before the record."""
    asked = ordered.drop_nulls(_ASKED).select(
        "asked_at", recording_stream_id="waiting_stream_id", wait_before="place"
    )
    return (
        ordered.sort("recorded_at", nulls_last=True)
        .join_asof(
            asked.sort("asked_at", maintain_order=True),
            left_on="recorded_at",
            right_on="asked_at",
            by="recording_stream_id",
            allow_exact_matches=False,
            check_sortedness=False,
        )
        .sort("place")
    )


def _pending_end(done: pl.Expr) -> pl.Expr:
    end = pl.max_horizontal(done, "pending_start_ns")
    return pl.when(done.is_not_null()).then(end).alias("pending_end_ns")


def _submitted(calls: pl.DataFrame, ops: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    """Return the ops of the streams concerned in the order in which their calls were made.

    A graph's ops count for the stream that it was launched on.

    Returns:
        `[stream_id, start_ns (of the call), work_end_ns (of this and all before), queue_id]`.
    """
    streams = pl.concat([pairs["waiting_stream_id"], pairs["recording_stream_id"]]).unique()
    called = ops.select("call_id", "stream_id", "queue_id", "end_ns").drop_nulls("call_id")
    launched = calls.select("call_id", launched_on="stream_id", start_ns="start_ns")
    return (
        called.hstack(rows_of(called["call_id"], launched, "call_id"))
        .select(
            pl.coalesce("launched_on", "stream_id").alias("stream_id"),
            "start_ns",
            "queue_id",
            "end_ns",
        )
        .filter(pl.col("stream_id").is_in(streams.implode()))
        .sort("start_ns", maintain_order=True)
        .select(
            "stream_id",
            "start_ns",
            "queue_id",
            work_end_ns=pl.col("end_ns").cum_max().over("stream_id"),
        )
    )


def _timed(pairs: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    def worked(side: str, at: str, strategy: Literal["backward", "forward"]) -> pl.DataFrame:
        asked = pairs.select(stream_id=f"{side}_stream_id", start_ns=at).with_row_index("row")
        joined = asked.sort("start_ns", nulls_last=True).join_asof(
            work, on="start_ns", by="stream_id", strategy=strategy, check_sortedness=False
        )
        return joined.sort("row")

    before = worked("waiting", "start_ns", "backward")
    after = worked("waiting", "start_ns", "forward")
    recorded = worked("recording", "record_start_ns", "backward")
    pending_start = pl.max_horizontal("called_ns", before["work_end_ns"])
    return pairs.with_columns(
        pl.coalesce(after["queue_id"], before["queue_id"]).alias("waiting_queue_id"),
        recorded["queue_id"].alias("recording_queue_id"),
        pending_start.alias("pending_start_ns"),
        recorded["work_end_ns"].alias("recorded_end_ns"),
    )
