"""Which calls were captured into a graph and so did not run, and of which that cannot be told."""

import polars as pl

from tracekit.intervals.matching import nearest

_THREAD = ["process_id", "thread_id"]
# What a capture may hold; waiting for the device or for memory is refused in one.
_CAPTURED = ("launch", "graph_launch", "copy", "fill", "event_record", "event_wait")


def without_captured(ordered: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that ran, without those that begin and end a capture.

    Where calls are missing, the begin or the end of a capture may be among them. What a capture may
    have held then, and left no op, becomes a row of kind `lost`: it may have been done, or not.

    Args:
        ordered: `process_id, thread_id, call_id, kind`, in the order of the calls, with rows of
            kind `capture_begin`, `capture_end` and `lost`.
        ops: `call_id`.
    """
    numbered = ordered.with_row_index("row").cast({"row": pl.Int64})
    is_edge = pl.col("kind").is_in(["capture_begin", "capture_end"])
    edges = numbered.filter(is_edge).select(
        *_THREAD, edge_row="row", begins=pl.col("kind") == "capture_begin"
    )
    if edges.is_empty():
        return ordered
    holes = numbered.filter(kind="lost").select("process_id", hole_row="row")
    before = nearest(numbered, edges, left_on="row", right_on="edge_row", by=_THREAD)
    after = nearest(
        numbered.select("row", *_THREAD),
        edges,
        left_on="row",
        right_on="edge_row",
        by=_THREAD,
        strategy="forward",
    )
    found = nearest(before, holes, left_on="row", right_on="hole_row", by=["process_id"])
    begun = pl.col("begins").fill_null(value=False)
    # A call is missing since the last edge that was seen.
    is_open = pl.col("hole_row").fill_null(-1) > pl.col("edge_row").fill_null(-1)
    ran = pl.col("call_id").is_in(ops["call_id"].drop_nulls().unique().implode())
    is_unsure = (
        is_open
        & (begun | pl.col("ends_next"))
        & pl.col("kind").is_in(_CAPTURED)
        & ~ran.fill_null(value=False)
    )
    lost = pl.lit("lost", ordered.schema["kind"])
    return (
        found.with_columns(ends_next=~after["begins"].fill_null(value=True))
        .with_columns(is_unsure=is_unsure)
        .filter(~is_edge, ~(begun & ~is_open))
        .with_columns(
            kind=pl.when("is_unsure").then(lost).otherwise("kind"),
            call_id=pl.when(~pl.col("is_unsure")).then("call_id"),
        )
        .select(ordered.columns)
    )
