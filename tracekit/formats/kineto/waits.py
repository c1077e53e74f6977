"""Waits of one stream for another's event, from CUPTI's synchronisation rows."""

import polars as pl

from tracekit.event_chains import chained_ends
from tracekit.formats.kineto.activity import KEY, known_correlation

_WAIT = "Stream Wait Event"
_DEVICE = ["process_id", "device_id"]


def stream_handles(details: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    """Return `[process_id, device_id, handle]` of the streams that rows name, not distinct.

    A stream that only waits name (`wait_on_stream`) counts where the process has one device: where
    it has several, nothing tells on which of them the stream is.
    """
    one_device = devices.group_by("process_id").len().filter(pl.col("len") == 1)
    waited_for = details.filter(pl.col("recording_handle").is_not_null()).join(
        one_device, on="process_id", how="semi", nulls_equal=True
    )
    own = details.filter(pl.col("stream_handle").is_not_null())
    return pl.concat(
        [
            own.select(*_DEVICE, handle="stream_handle"),
            waited_for.select(*_DEVICE, handle="recording_handle"),
        ]
    )


def with_recording_streams(
    synced: pl.DataFrame, details: pl.DataFrame, streams: pl.DataFrame
) -> pl.DataFrame:
    """Add `recording_stream_id`, the stream on which the event that a row waits for was recorded.

    `wait_on_stream` numbers a stream of a device that is not named, and devices share numbers. So
    it is, in this order: the stream of the record call's own rows (`cuda_event`); the stream of
    that number on the row's own device, since Kineto looks events up in the row's own context;
    the one stream of that number on other devices of the process. Null where there are several,
    or none (`stream_handles`): then it cannot be told.

    Args:
        synced: Synchronisation rows with `recording_handle`.
        details: Rows of all kinds with `stream_id`.
        streams: With `process_id`, `device_id` and `handle`.
    """
    by_call = ["process_id", "record_correlation"]
    on_device = [*_DEVICE, "recording_handle"]
    anywhere = ["process_id", "recording_handle"]
    calls = synced.select(*by_call).filter(pl.col("record_correlation") > 0)
    own_rows = details.drop("record_correlation").rename({"correlation": "record_correlation"})
    own_rows = own_rows.join(calls, on=by_call, how="semi", nulls_equal=True)
    numbered = streams.rename({"handle": "recording_handle"})
    for keys, rows in ((by_call, own_rows), (on_device, numbered), (anywhere, numbered)):
        found = _only_stream(rows, keys).rename({"stream_id": "_".join(keys)})
        synced = synced.join(found, on=keys, how="left", nulls_equal=True, maintain_order="left")
    found_by = ["_".join(keys) for keys in (by_call, on_device, anywhere)]
    return synced.with_columns(recording_stream_id=pl.coalesce(found_by)).drop(found_by)


def _only_stream(rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return `[*keys, stream_id]` of the keys whose rows are all of one stream."""
    return (
        rows.drop_nulls([keys[-1], "stream_id"])
        .group_by(keys)
        .agg(pl.col("stream_id").first(), streams=pl.col("stream_id").n_unique())
        .filter(pl.col("streams") == 1)
        .drop("streams")
    )


def waits_of(synced: pl.DataFrame, behind: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the `waits` table.

    A row's own time is the host call's, not the stall's, so the pending interval is worked out:
    it begins when the call has returned and the waiting stream has finished what it was given
    before, and ends when the recording stream has finished what it was given before the record
    and what it waited for itself (`chained_ends`). CUPTI numbers calls in order, so "before" is a
    smaller correlation: that also places work queued before the window, whose calls are not there,
    and calls within one microsecond. Waits asked for before the window cannot be followed.

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
    finished = _submitted(ops)
    waits = _joined_before(waits, finished, "stream_id", "correlation", "waiting_end_ns")
    waits = _joined_before(
        waits, finished, "recording_stream_id", "record_correlation", "recorded_end_ns"
    )
    start = pl.max_horizontal("returned_ns", "waiting_end_ns")
    placed = waits.sort("wait_id").select(
        "recording_stream_id",
        "recorded_end_ns",
        waiting_stream_id="stream_id",
        asked_at=known_correlation(pl.col("correlation")),
        recorded_at="record_correlation",
        pending_start_ns=start,
    )
    return waits.sort("wait_id").select(
        "wait_id",
        "process_id",
        "recording_stream_id",
        "wait_call_id",
        "record_call_id",
        waiting_stream_id="stream_id",
        pending_start_ns=pl.when(pl.col("returned_ns").is_not_null()).then(start),
        pending_end_ns=chained_ends(placed),
        evidence=pl.lit("recorded"),
    )


def _submitted(ops: pl.DataFrame) -> pl.DataFrame:
    """Return per stream and correlation, when all ops up to that correlation have finished.

    A graph's ops count for the stream that it was launched on, on whichever they ran. No row names
    that stream: the one on which the graph's first op began stands for it. A branch counts for its
    own stream too.
    """
    correlated = ops.filter(pl.col("stream_id").is_not_null() & pl.col("correlation").is_not_null())
    whole_graphs = (
        correlated.filter(pl.col("graph_launch_id").is_not_null())
        .group_by(KEY)
        .agg(pl.col("stream_id").sort_by("start_ns").first(), pl.col("end_ns").max())
    )
    columns = ["stream_id", "correlation", "end_ns"]
    return (
        pl.concat([correlated.select(columns), whole_graphs.select(columns)])
        .sort("correlation")
        .with_columns(pl.col("end_ns").cum_max().over("stream_id"))
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
