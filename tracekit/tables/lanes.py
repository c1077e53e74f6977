"""Which stream ran on which hardware queue when: the same for every format that has both."""

import polars as pl


def stream_queues(ops: pl.DataFrame) -> pl.DataFrame:
    """Return the `stream_queues` table, from the ops that name both.

    Args:
        ops: `stream_id`, `queue_id`, `start_ns`, `end_ns`.
    """
    return (
        ops.lazy()
        .filter(pl.col("stream_id").is_not_null() & pl.col("queue_id").is_not_null())
        .group_by("stream_id", "queue_id")
        .agg(
            first_ns=pl.col("start_ns").min(),
            last_ns=pl.col("end_ns").max(),
            ops=pl.len().cast(pl.Int64),
        )
        .sort("stream_id", "queue_id")
        .collect()
    )
