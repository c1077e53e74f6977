"""Waits of one stream for another's event, from CUPTI's synchronisation rows."""

import polars as pl

from tracekit.formats.kineto.activity import KEY

_WAIT = "Stream Wait Event"


def waits_of(
    synced: pl.DataFrame, behind: pl.DataFrame, ops: pl.DataFrame, first_correlation: pl.DataFrame
) -> pl.DataFrame:
    """Return the `waits` table.

    A row's own time is the host call's, not the stall's, so the pending interval is worked out:
    it begins when the call has returned and the waiting stream has finished what it was given
    before, and ends when the recording stream has finished what it was given before the record.

    Args:
        synced: Synchronisation rows with ids of both streams.
        behind: One call per correlation.
        ops: Device work with `call_start_ns`.
        first_correlation: process_id, first_correlation: older ops were queued before the window.
    """
    calls = behind.select(*KEY, "call_id", "start_ns", "end_ns")
    own = calls.rename({"call_id": "wait_call_id", "start_ns": "asked_ns", "end_ns": "returned_ns"})
    record = calls.select(
        "process_id",
        record_correlation="correlation",
        record_call_id="call_id",
        recorded_ns="start_ns",
    )
    waits = (
        synced.filter(pl.coalesce("cuda_sync_kind", pl.col("name").cast(pl.String)) == _WAIT)
        .join(own, on=KEY, how="left", maintain_order="left")
        .join(record, on=["process_id", "record_correlation"], how="left", maintain_order="left")
        .with_row_index("wait_id")
    )
    given = _finished_by_submission(ops, first_correlation)
    waits = _joined_before(waits, given, "stream_id", "asked_ns", "waiting_end_ns")
    waits = _joined_before(waits, given, "recording_stream_id", "recorded_ns", "recorded_end_ns")
    start = pl.max_horizontal("returned_ns", "waiting_end_ns")
    return waits.sort("wait_id").select(
        "wait_id",
        "process_id",
        "recording_stream_id",
        "wait_call_id",
        "record_call_id",
        waiting_stream_id="stream_id",
        pending_start_ns=pl.when(pl.col("returned_ns").is_not_null()).then(start),
        pending_end_ns=pl.when(pl.col("recorded_end_ns").is_not_null()).then(
            pl.max_horizontal("recorded_end_ns", start)
        ),
        evidence=pl.lit("recorded"),
    )


def _finished_by_submission(ops: pl.DataFrame, first_correlation: pl.DataFrame) -> pl.DataFrame:
    """Return per stream and submission time, when all ops submitted until then have finished."""
    is_older = pl.col("correlation") < pl.col("first_correlation")
    submitted = pl.when(is_older).then(0).otherwise(pl.coalesce("call_start_ns", "start_ns"))
    return (
        ops.filter(pl.col("stream_id").is_not_null())
        .join(first_correlation, on="process_id", how="left")
        .select("stream_id", "end_ns", submitted_ns=submitted)
        .sort("submitted_ns")
        .with_columns(pl.col("end_ns").cum_max().over("stream_id"))
    )


def _joined_before(
    waits: pl.DataFrame, given: pl.DataFrame, stream: str, at: str, name: str
) -> pl.DataFrame:
    return (
        waits.sort(at)
        .join_asof(
            given.rename({"end_ns": name, "stream_id": stream}),
            left_on=at,
            right_on="submitted_ns",
            by=stream,
            strategy="backward",
            allow_exact_matches=False,
            check_sortedness=False,
        )
        .drop("submitted_ns")
    )
