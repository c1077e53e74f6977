"""Waits that the profiler itself recorded on the device: `rocpd_hip_event`, ROCm 10.1 and later."""

import polars as pl

from tracekit.formats.rocpd.database import Capture
from tracekit.formats.rocpd.events import Events, Texts
from tracekit.formats.rocpd.identity import Identity
from tracekit.formats.rocpd.row_index import RowIndex
from tracekit.formats.rocpd.waits import Waits
from tracekit.tables.activity import WAITS

# The table is known from its description only, so its columns are taken as they are found.
_OPERATIONS = ("name", "operation")
_COLUMNS = ("start", "end", "queue_id", "source_queue_id", "stream_id", "hip_event_handle")


def recorded_waits(
    capture: Capture, identity: Identity, texts: Texts, events: Events, calls: pl.DataFrame
) -> Waits | None:
    """Return the recorded waits, or None where the file has none.

    Each wait is paired with the last record of its event whose stack id is lower: stack ids count
    up in the order in which a process makes its calls.
    """
    rows = _rows(capture, identity, texts, events)
    if rows is None or rows.is_empty():
        return None
    rows = rows.with_columns(
        call_id=RowIndex(calls["correlation_id"]).rows(rows["stack"]).cast(pl.Int64)
    ).sort("stack", nulls_last=True, maintain_order=True)
    is_wait = pl.col("operation").str.contains("WAIT")
    by = ["process_id", "handle"]
    records = rows.filter(pl.col("operation").str.contains("RECORD")).select(
        *by,
        "stack",
        record_call_id="call_id",
        recording_stream_id="stream_id",
        record_queue_id="queue_id",
    )
    waits = rows.filter(is_wait).join_asof(
        records, on="stack", by=by, check_sortedness=False, allow_exact_matches=False
    )
    frame = (
        waits.sort("start_ns", maintain_order=True)
        .with_row_index("wait_id")
        .select(
            "wait_id",
            "process_id",
            pl.col("stream_id").alias("waiting_stream_id"),
            pl.col("queue_id").alias("waiting_queue_id"),
            "recording_stream_id",
            pl.coalesce("source_queue_id", "record_queue_id").alias("recording_queue_id"),
            pl.col("call_id").alias("wait_call_id"),
            "record_call_id",
            pl.col("start_ns").alias("pending_start_ns"),
            pl.max_horizontal("start_ns", "end_ns").alias("pending_end_ns"),
            pl.lit("recorded").alias("evidence"),
        )
    )
    has_record = waits["recording_stream_id"].is_not_null() | waits["record_call_id"].is_not_null()
    return Waits(WAITS.conform(frame), int((~has_record).sum()), 0)


def _rows(
    capture: Capture, identity: Identity, texts: Texts, events: Events
) -> pl.DataFrame | None:
    table = "rocpd_hip_event"
    if not capture.has(table, "start", "end"):
        return None
    wanted = ["pid", "event_id", "name_id", *_COLUMNS]
    parts = []
    for part in capture.slices(table, [*wanted, *_OPERATIONS]):
        absent = [name for name in wanted if name not in part.columns]
        known = part.with_columns(pl.lit(None, pl.Int64).alias(name) for name in absent)
        spoken = [pl.col(name).cast(pl.String) for name in _OPERATIONS if name in part.columns]
        named = texts.texts.gather(texts.index.rows(known["name_id"]))
        parts.append(
            known.select(
                identity.process_of(known["pid"]).alias("process_id"),
                identity.queues.ids(known["queue_id"]).alias("queue_id"),
                identity.queues.ids(known["source_queue_id"]).alias("source_queue_id"),
                identity.streams.ids(known["stream_id"]).alias("stream_id"),
                events.stack_of(known["event_id"]).alias("stack"),
                pl.coalesce(named, *spoken).alias("operation"),
                pl.col("start").alias("start_ns"),
                pl.col("end").alias("end_ns"),
                pl.col("hip_event_handle").cast(pl.Int64, strict=False).alias("handle"),
            )
        )
    return pl.concat(parts) if parts else None
