"""Waits of one stream for another's event, from CUPTI's synchronisation rows."""

import polars as pl

from tracekit.formats.kineto.activity import KEY, known_correlation

_WAIT = "Stream Wait Event"


def waits_of(synced: pl.DataFrame, behind: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the `waits` table.

    A row's own time is the host call's, not the stall's, so the pending interval is worked out:
    it begins when the call has returned and the waiting stream has finished what it was given
    before, and ends when the recording stream has finished what it was given before the record.
    CUPTI numbers calls in order, so "before" is a smaller correlation: that also places work
    queued before the window, whose calls are not there, and calls within one microsecond.

    Args:
        synced: Synchronisation rows with ids of both streams.
        behind: One call per correlation.
        ops: Device work.
    """
    own = behind.select(*KEY, wait_call_id="call_id", returned_ns="end_ns")
    record = behind.select("process_id", record_correlation="correlation", record_call_id="call_id")
    waits = (
        synced.filter(pl.coalesce("cuda_sync_kind", pl.col("name").cast(pl.String)) == _WAIT)
        .with_columns(record_correlation=known_correlation(pl.col("record_correlation")))
        .join(own, on=KEY, how="left", maintain_order="left")
        .join(record, on=["process_id", "record_correlation"], how="left", maintain_order="left")
        .with_row_index("wait_id")
    )
    finished = _finished_by_correlation(ops)
    waits = _joined_before(waits, finished, "stream_id", "correlation", "waiting_end_ns")
    waits = _joined_before(
        waits, finished, "recording_stream_id", "record_correlation", "recorded_end_ns"
    )
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


def _finished_by_correlation(ops: pl.DataFrame) -> pl.DataFrame:
    """Return per stream and correlation, when all ops up to that correlation have finished."""
    return (
        ops.filter(pl.col("stream_id").is_not_null() & pl.col("correlation").is_not_null())
        .sort("correlation")
        .select("stream_id", "correlation", pl.col("end_ns").cum_max().over("stream_id"))
    )


def _joined_before(
    waits: pl.DataFrame, finished: pl.DataFrame, stream: str, correlation: str, name: str
) -> pl.DataFrame:
    finished = finished.rename({"end_ns": name, "stream_id": stream, "correlation": "_given"})
    return (
        waits.sort(correlation)
        .join_asof(
            finished,
            left_on=correlation,
            right_on="_given",
            by=stream,
            strategy="backward",
            allow_exact_matches=False,
            check_sortedness=False,
        )
        .drop("_given")
    )
