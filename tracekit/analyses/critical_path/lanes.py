"""The ops in order of their lanes, and the op before each."""

import polars as pl

from tracekit.intervals.places import run_ids
from tracekit.tables.rows import rows_of

_START, _END = pl.col("start_ns"), pl.col("end_ns")


def nodes_of(submitted: pl.DataFrame, ops: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the ops by lane, then start, end and id; `rank` is their place in the latter."""
    described = ops.select("op_id", "kind", "name", "queue_id", "graph_launch_id")
    called = calls.select("call_id", "thread_id", launch_stream="stream_id")
    stream = pl.coalesce(
        pl.when(pl.col("graph_launch_id").is_not_null()).then("launch_stream"), "stream_id"
    )
    no_stream = pl.col("lane_stream").is_null()
    nodes = (
        submitted.hstack(rows_of(submitted["call_id"], called, "call_id"))
        .join(described, on="op_id", how="left")
        .with_columns(lane_stream=stream)
        .sort("start_ns", "end_ns", "op_id")
        .with_row_index("rank")
        .with_columns(pl.col("rank").cast(pl.Int64), lane_queue=pl.when(no_stream).then("queue_id"))
        .with_columns(alone=pl.when(no_stream & pl.col("lane_queue").is_null()).then("rank"))
    )
    lane = ["process_id", "device_id", "lane_stream", "lane_queue", "alone"]
    ordered = nodes.sort(*lane, "rank")
    return (
        ordered.with_columns(run_ids(ordered, lane).cast(pl.Int64).alias("lane"))
        .with_row_index("at")
        .with_columns(pl.col("at").cast(pl.Int64))
        .drop("lane_queue", "alone")
    )


def in_order(nodes: pl.DataFrame) -> pl.DataFrame:
    """Return `order_at`, the op that ends last of those before each in its lane or graph launch.

    Of one that still runs when the op starts only the time until then counts, and the last of these
    that started. `is_within`: not the first op of its graph launch on its device.
    """
    launch = ["device_id", "graph_launch_id"]
    own = _latest_before(nodes, ["lane"])
    launched = nodes.drop_nulls("graph_launch_id").sort(*launch, "rank")
    inner = _latest_before(launched, launch).drop_nulls("order_at")
    by_row = nodes.select("at").join(inner, on="at", how="left", maintain_order="left")
    is_within = by_row["order_at"].is_not_null()
    return pl.DataFrame(
        {
            "order_at": by_row["order_at"].fill_null(own["order_at"]),
            "order_ns": by_row["order_ns"].fill_null(own["order_ns"]),
            "is_within": is_within,
        }
    )


def _latest_before(ordered: pl.DataFrame, group: list[str]) -> pl.DataFrame:
    """Return `at, order_at, order_ns` of each row of frames ordered by group and rank."""
    latest = pl.when(pl.col("reach") == _END).then("at").forward_fill().over(group)
    last, last_ns = pl.col("at").shift(1).over(group), _END.shift(1).over(group)
    reach = pl.col("reach").shift(1).over(group)
    return (
        ordered.select(*group, "at", "start_ns", "end_ns")
        .with_columns(reach=_END.cum_max().over(group))
        .with_columns(latest=latest)
        .select(
            "at",
            order_at=pl.when(last_ns > _START)
            .then(last)
            .otherwise(pl.col("latest").shift(1).over(group)),
            order_ns=pl.min_horizontal(reach, pl.when(reach.is_not_null()).then("start_ns")),
        )
    )
