"""Waits of streams for events: recorded by newer profilers, else inferred from call arguments."""

from dataclasses import dataclass
from typing import Literal

import polars as pl

from tracekit.event_chains import chained_ends
from tracekit.formats.rocpd.arguments import argument, handles
from tracekit.tables.activity import WAITS

_KEY = ["process_id", "event_key"]
_CAPTURE_BEGINS = (
    "hipStreamBeginCapture",
    "hipStreamBeginCapture_spt",
    "hipStreamBeginCaptureToGraph",
)
_CAPTURE_ENDS = ("hipStreamEndCapture", "hipStreamEndCapture_spt")


@dataclass(frozen=True)
class Waits:
    """The `waits` table, and the waits about which something is missing.

    Attributes:
        frame: The table.
        unpaired: Waits whose event was not seen recorded before.
        captured: Event calls made while their thread was capturing a graph: no stream waits.
    """

    frame: pl.DataFrame
    unpaired: int
    captured: int


def with_event_keys(calls: pl.DataFrame, arguments: pl.DataFrame) -> pl.DataFrame:
    """Add `event_key` and `graph_exec_key` to calls."""
    for role, name in (("event", "event_key"), ("graph", "graph_exec_key")):
        keys = argument(arguments, role).select(
            "call_id", key=handles(pl.col("text")).cast(pl.Int64, strict=False)
        )
        column = pl.repeat(None, calls.height, dtype=pl.Int64, eager=True)
        calls = calls.with_columns(column.scatter(keys["call_id"], keys["key"]).alias(name))
    return calls


def inferred_waits(calls: pl.DataFrame, ops: pl.DataFrame) -> Waits:
    """Pair each wait call with the last record of its event before it.

    Nothing in the trace says when the wait began and ended on the device. It can begin when the
    call has been made and the stream's earlier work is done, and it ends when the work submitted
    to the recording stream before the record call is done, and what that stream waited for then
    (`chained_ends`). Waits whose event was recorded before the trace began are not followed.

    Args:
        calls: With `stream_id` and `event_key`, `call_id` the row number.
        ops: With `call_id`.
    """
    event_calls = calls.filter(
        pl.col("event_key").is_not_null()
        & (
            pl.col("kind").is_in(["event_record", "event_wait"])
            | (pl.col("name") == "hipEventDestroy")
        )
    ).sort("start_ns", maintain_order=True)
    if not (event_calls["kind"] == "event_wait").any():
        return Waits(WAITS.empty(), 0, 0)
    captured = _captured(event_calls, calls)
    event_calls = event_calls.filter(~captured)
    pairs = _paired(event_calls)
    work = _submitted(calls, ops, pairs)
    frame = _timed(pairs, work).sort("wait_call_id").with_row_index("wait_id")
    unpaired = frame["record_call_id"].null_count()
    return Waits(WAITS.conform(frame), unpaired, int(captured.sum()))


def _paired(event_calls: pl.DataFrame) -> pl.DataFrame:
    # A handle is used again after its event is destroyed: the destruction hides older records.
    is_record = pl.col("kind") == "event_record"
    records = event_calls.filter(pl.col("kind") != "event_wait").select(
        *_KEY,
        "start_ns",
        record_call_id=pl.when(is_record).then("call_id"),
        recording_stream_id=pl.when(is_record).then("stream_id"),
        record_start_ns=pl.when(is_record).then("start_ns"),
    )
    waits = event_calls.filter(pl.col("kind") == "event_wait").select(
        *_KEY,
        "start_ns",
        wait_call_id="call_id",
        waiting_stream_id="stream_id",
        called_ns="end_ns",
    )
    return waits.join_asof(records, on="start_ns", by=_KEY, check_sortedness=False)


def _captured(event_calls: pl.DataFrame, calls: pl.DataFrame) -> pl.Series:
    """Return which event calls were made between the begin and end of their thread's capture."""
    thread = ["process_id", "thread_id"]
    edges = (
        calls.filter(pl.col("name").is_in([*_CAPTURE_BEGINS, *_CAPTURE_ENDS]))
        .select(*thread, "start_ns", begins=pl.col("name").is_in(_CAPTURE_BEGINS))
        .sort("start_ns")
    )
    joined = event_calls.join_asof(edges, on="start_ns", by=thread, check_sortedness=False)
    return joined["begins"].fill_null(value=False) & (joined["kind"] != "other")


def _submitted(calls: pl.DataFrame, ops: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    """Return the ops of the streams concerned in the order in which their calls were made.

    A graph's ops count for the stream that it was launched on.

    Returns:
        `[stream_id, start_ns (of the call), work_end_ns (of this and all before), queue_id]`.
    """
    streams = pl.concat([pairs["waiting_stream_id"], pairs["recording_stream_id"]]).unique()
    called = ops.select("call_id", "stream_id", "queue_id", "end_ns").drop_nulls("call_id")
    rows = called["call_id"]
    return (
        called.select(
            pl.coalesce(calls["stream_id"].gather(rows), "stream_id").alias("stream_id"),
            calls["start_ns"].gather(rows).alias("start_ns"),
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
    frame = pairs.with_columns(
        pl.coalesce(after["queue_id"], before["queue_id"]).alias("waiting_queue_id"),
        recorded["queue_id"].alias("recording_queue_id"),
        pending_start.alias("pending_start_ns"),
        recorded["work_end_ns"].alias("recorded_end_ns"),
        pl.lit("inferred").alias("evidence"),
    )
    placed = frame.rename({"start_ns": "asked_at", "record_start_ns": "recorded_at"})
    return frame.with_columns(chained_ends(placed)).select(
        name for name in WAITS.schema if name != "wait_id"
    )
