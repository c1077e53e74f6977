"""Waits of streams for events: recorded by newer profilers, else inferred from call arguments."""

from dataclasses import dataclass

import polars as pl

from tracekit.api_calls import is_captured
from tracekit.event_chains import timed_waits
from tracekit.formats.rocpd.arguments import argument, handles
from tracekit.tables.activity import WAITS

_KEY = ["process_id", "event_key"]


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

    Nothing in the trace says when the wait began and ended on the device; `timed_waits` works it
    out. Waits whose event was recorded before the trace began are not followed.

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
    # A destruction is never captured.
    captured = is_captured(event_calls, calls) & (event_calls["kind"] != "other")
    event_calls = event_calls.filter(~captured)
    pairs = _paired(event_calls)
    timed = timed_waits(pairs, calls, ops).with_columns(evidence=pl.lit("inferred"))
    frame = timed.sort("wait_call_id").with_row_index("wait_id")
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
