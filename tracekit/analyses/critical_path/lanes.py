"""The ops in order of time, their lanes, and the op before each."""

import polars as pl

from tracekit.intervals.places import group_base
from tracekit.tables.rows import rows_of

_START, _END = pl.col("start_ns"), pl.col("end_ns")
# Rows are wide while a running maximum is taken of them: so many at a time, or one group.
_ROWS_AT_ONCE = 500_000


def nodes_of(submitted: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the ops by start, end and id, so that a row's number is its rank in time.

    Returns:
        The columns of `submitted`, `thread_id` of the call, and `lane_stream`: the stream of the
        op, of a graph's op the one that the graph was launched on.
    """
    called = calls.select("call_id", "thread_id", launch_stream="stream_id")
    nodes = submitted if _is_ranked(submitted) else submitted.sort("start_ns", "end_ns", "op_id")
    launched_on = pl.when(pl.col("graph_launch_id").is_not_null()).then("launch_stream")
    return (
        nodes.hstack(rows_of(nodes["call_id"], called, "call_id"))
        .with_columns(lane_stream=pl.coalesce(launched_on, "stream_id"))
        .drop("launch_stream")
    )


def _is_ranked(submitted: pl.DataFrame) -> bool:
    """Return whether ops that are ordered by start are so by end and id, too."""
    is_tie = _START.shift(1) == _START
    end, before = _END, _END.shift(1)
    is_wrong = (end < before) | ((end == before) & (pl.col("op_id") < pl.col("op_id").shift(1)))
    return not submitted.select((is_tie & is_wrong).any()).item()


def in_order(nodes: pl.DataFrame) -> pl.DataFrame:
    """Return `order_at`, the op that ends last of those before each in its lane or graph launch.

    Of one that still runs when the op starts only the time until then counts (`order_ns`), and the
    last of these that started. `is_within`: not the first op of its graph launch on its device.
    """
    queue = pl.when(pl.col("lane_stream").is_null()).then("queue_id")
    lanes = nodes.select("process_id", "device_id", "lane_stream", lane_queue=queue)
    has_lane = pl.col("lane_stream").is_not_null() | pl.col("lane_queue").is_not_null()
    own = _latest_before(nodes, lanes.with_row_index("at").filter(has_lane))
    launches = nodes.select("device_id", "graph_launch_id").with_row_index("at")
    inner = _latest_before(nodes, launches.drop_nulls("graph_launch_id")).drop_nulls("order_at")

    def of_nodes(name: str) -> pl.Series:
        unknown = pl.repeat(None, nodes.height, dtype=own.schema[name], eager=True)
        return unknown.scatter(own["at"], own[name]).scatter(inner["at"], inner[name]).alias(name)

    is_within = pl.repeat(value=False, n=nodes.height, eager=True).scatter(inner["at"], True)
    return pl.DataFrame([of_nodes("order_at"), of_nodes("order_ns"), is_within.alias("is_within")])


def _telling(keys: pl.DataFrame) -> list[str]:
    """Return the columns without those that are the same in all rows, but at least one."""
    is_same = keys.select(pl.all().eq_missing(pl.all().first()).all()).row(0)
    telling = [name for name, same in zip(keys.columns, is_same, strict=True) if not same]
    return telling or keys.columns[:1]


def _latest_before(nodes: pl.DataFrame, grouped: pl.DataFrame) -> pl.DataFrame:
    """Return `at, order_at, order_ns`: what ends last before each op of a group.

    Args:
        nodes: `start_ns, end_ns`.
        grouped: `at`, rows of `nodes` in order, and the columns that tell groups apart.
    """
    by = _telling(grouped.drop("at"))
    rows = (
        grouped.group_by(by).agg("at").with_row_index("group").select("group", "at").explode("at")
    )
    begins = pl.col("group") != pl.col("group").shift(1, fill_value=-1)
    part = pl.when(begins).then(pl.int_range(pl.len()) // _ROWS_AT_ONCE).forward_fill()
    parts = rows.with_columns(part=part).partition_by("part", include_key=False) or [rows]
    return pl.concat([_latest_of(some, nodes) for some in parts])


def _latest_of(rows: pl.DataFrame, nodes: pl.DataFrame) -> pl.DataFrame:
    """Return what `_latest_before` does, of whole groups: `group, at`, group by group."""
    low, high = nodes.select(_START.min().fill_null(0), _END.max().fill_null(0)).row(0)
    is_same = pl.col("group") == pl.col("group").shift(1)
    # Places of a group lie beyond those of all groups before it: one running maximum serves all.
    reach, place = pl.col("reach"), pl.col("base") + _END
    latest = pl.when(reach == place).then("at").forward_fill().shift(1)
    is_running = _END.shift(1) > _START
    return (
        rows.with_columns(
            group_base(rows["group"], low, high).alias("base"),
            nodes["start_ns"].gather(rows["at"]),
            nodes["end_ns"].gather(rows["at"]),
        )
        .with_columns(reach=place.cum_max())
        .select(
            "at",
            order_at=pl.when(is_same).then(
                pl.when(is_running).then(pl.col("at").shift(1)).otherwise(latest)
            ),
            order_ns=pl.when(is_same).then(
                pl.min_horizontal((reach.shift(1) - pl.col("base")).cast(pl.Int64), "start_ns")
            ),
        )
    )
