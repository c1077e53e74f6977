"""Queues and streams of one capture."""

import polars as pl

from tracekit.formats.rocpd.identity import Identity


def queues_frame(identity: Identity, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the `queues` table.

    The writer always adds a "Default Queue" 0, which is none of the hardware; it is kept only where
    something ran on it.
    """
    frame = _placed(identity.queues.items(), identity.names["rocpd_info_queue"], "queue_id", ops)
    return frame.filter((pl.col("handle") != 0) | pl.col("process_id").is_not_null()).with_columns(
        pl.col("process_id").fill_null(_only_process(identity))
    )


def streams_frame(identity: Identity, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the `streams` table; whether a stream is blocking is nowhere in the file.

    The device is null where the ops of a stream ran on several: the null stream has one number for
    all devices. A stream that only calls name has no number of the profiler's.
    """
    frame = _placed(identity.streams.items(), identity.names["rocpd_info_stream"], "stream_id", ops)
    return frame.with_columns(
        pl.col("process_id").fill_null(_only_process(identity)),
        flags=pl.when(pl.col("handle") == 0).then(pl.lit("null")),
        handle=pl.when(pl.col("handle") >= 0).then("handle"),
    )


def _only_process(identity: Identity) -> pl.Expr:
    return pl.lit(None if identity.has_many_processes else 0, pl.Int32)


def _placed(
    items: list[tuple[int, int]], names: dict[int, str | None], column: str, ops: pl.DataFrame
) -> pl.DataFrame:
    rows = [(number, handle, names.get(handle)) for number, handle in items]
    schema = {column: pl.Int32, "handle": pl.Int64, "name": pl.String}
    found = (
        ops.lazy()
        .filter(pl.col(column).is_not_null())
        .group_by(column)
        .agg(
            process_id=pl.col("process_id").first(),
            lowest=pl.col("device_id").min(),
            highest=pl.col("device_id").max(),
        )
        .with_columns(device_id=pl.when(pl.col("lowest") == pl.col("highest")).then("lowest"))
        .drop("lowest", "highest")
        .collect()
    )
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return frame.join(found, on=column, how="left", maintain_order="left")
