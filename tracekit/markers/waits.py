"""Waits of streams for events, as markers tell them: who waits for which record."""

import polars as pl

from tracekit.event_chains import timed_waits
from tracekit.intervals.matching import nearest
from tracekit.tables.activity import WAITS

_EVENT = ["process_id", "event_key"]


def marked_waits(
    waits: pl.DataFrame, marks: pl.DataFrame, calls: pl.DataFrame, ops: pl.DataFrame
) -> pl.DataFrame:
    """Return the `waits` table with the waits whose record markers name.

    A wait is for the event's last record before it. What the format itself recorded stays where it
    names a record; what was inferred or left open gives way to the markers' word.

    Args:
        waits: As read.
        marks: The `marks` table.
        calls: With the streams and events that markers told.
        ops: The `ops` table.
    """
    times = calls.select("call_id", "start_ns", called_ns="end_ns", of_call="stream_id")
    said = (
        marks.join(times, on="call_id", how="left", maintain_order="left")
        .with_columns(
            pl.coalesce("start_ns", "time_ns").alias("start_ns"),
            pl.coalesce("called_ns", "time_ns").alias("called_ns"),
            pl.coalesce("stream_id", "of_call").alias("stream_id"),
        )
        .sort("time_ns", maintain_order=True)
    )
    pairs = _paired(said, calls)
    told = timed_waits(pairs, calls, ops).with_columns(evidence=pl.lit("recorded"))
    told = told.drop_nulls("recording_stream_id")
    names_record = pl.col("record_call_id").is_not_null() & (pl.col("evidence") == "recorded")
    kept = waits.filter(names_record)
    new = told.join(kept, on="wait_call_id", how="anti")
    others = waits.filter(~names_record).join(new, on="wait_call_id", how="anti")
    both = pl.concat([WAITS.conform(part) for part in (kept, others, new)])
    return both.sort("pending_start_ns", "wait_call_id", nulls_last=True).with_columns(
        wait_id=pl.int_range(pl.len(), dtype=pl.Int64)
    )


def _paired(said: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    # A handle is used again after its event is destroyed: the destruction hides older records.
    names = calls.select("name").unique()
    ending = names.filter(pl.col("name").cast(pl.String).str.contains("EventDestroy"))
    destroyed = calls.join(ending, on="name", how="semi").select(*_EVENT, time_ns="start_ns")
    records = said.filter(statement="record").select(
        *_EVENT,
        "time_ns",
        record_call_id="call_id",
        recording_stream_id="stream_id",
        record_start_ns="start_ns",
    )
    known = pl.concat([records, destroyed], how="diagonal").drop_nulls("event_key")
    waits = said.filter(statement="wait").select(
        *_EVENT,
        "start_ns",
        "called_ns",
        asked_ns="time_ns",
        wait_call_id="call_id",
        waiting_stream_id="stream_id",
    )
    return nearest(
        waits,
        known.sort("time_ns", maintain_order=True),
        left_on="asked_ns",
        right_on="time_ns",
        by=_EVENT,
    )
