"""Interval algebra on any frame with `start_ns` and `end_ns`: half-open, integer nanoseconds.

`by` names the columns that keep intervals apart (a device, a queue); null is a group of its own.
Empty intervals (`start_ns == end_ns`) have no length and vanish. Nothing here loops over rows.
"""

from collections.abc import Sequence

import polars as pl


def union(frame: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the union of the intervals of each group.

    Returns:
        `[*by, start_ns, end_ns]`, disjoint, ordered by group and time; touching intervals are one.
        Cost: one sort.
    """
    reach = pl.col("end_ns").cum_max().shift(1)
    ordered = (
        frame.lazy()
        .select(*by, "start_ns", "end_ns")
        .filter(pl.col("start_ns") < pl.col("end_ns"))
        .sort(*by, "start_ns")
    )
    if by:
        reach = reach.over(by)
    opens = (reach.is_null() | (pl.col("start_ns") > reach)).cum_sum().alias("island")
    return (
        ordered.with_columns(opens)
        .group_by("island", maintain_order=True)
        .agg(
            *(pl.col(name).first() for name in by),
            pl.col("start_ns").first(),
            pl.col("end_ns").max(),
        )
        .select(*by, "start_ns", "end_ns")
        .collect()
    )


def clip(frame: pl.DataFrame, windows: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the parts of `frame` inside the one window of its group.

    Args:
        frame: Rows with `start_ns`, `end_ns` and the `by` columns.
        windows: `[*by, start_ns, end_ns]`, one row per group; rows of other groups are dropped.
        by: Group columns.

    Returns:
        `frame`'s columns and order, `start_ns` and `end_ns` moved into the window; rows outside
        vanish, and so do rows of no length.
    """
    bounds = windows.select(*by, window_start="start_ns", window_end="end_ns")
    return (
        frame.lazy()
        .join(bounds.lazy(), on=list(by), how="inner", nulls_equal=True, maintain_order="left")
        .with_columns(
            start_ns=pl.max_horizontal("start_ns", "window_start"),
            end_ns=pl.min_horizontal("end_ns", "window_end"),
        )
        .filter(pl.col("start_ns") < pl.col("end_ns"))
        .drop("window_start", "window_end")
        .collect()
    )


def gaps(islands: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the time between the islands of each group, edges of a window not included.

    Args:
        islands: Disjoint and ordered within each group, as `union` returns them.
        by: Group columns.

    Returns:
        `[*by, start_ns, end_ns]`, ordered, each between two islands of one group.
    """
    following = pl.col("start_ns").shift(-1)
    return (
        islands.lazy()
        .select(
            *by,
            pl.col("end_ns").alias("start_ns"),
            (following.over(by) if by else following).alias("end_ns"),
        )
        .filter(pl.col("start_ns") < pl.col("end_ns"))
        .collect()
    )


def depth(frame: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return how many intervals of each group cover each instant, as a step function.

    Returns:
        `[*by, start_ns, end_ns, depth]`: segments of constant `depth` ≥ 0 from a group's first
        start to its last end, disjoint and without holes; +1 at each start, −1 at each end, summed
        per instant, so an end and a start at one instant meet without a spike.
    """
    starts = frame.lazy().select(*by, at="start_ns", step=pl.lit(1, pl.Int64))
    ends = frame.lazy().select(*by, at="end_ns", step=pl.lit(-1, pl.Int64))
    running = pl.col("step").cum_sum()
    following = pl.col("at").shift(-1)
    return (
        pl.concat([starts, ends])
        .group_by(*by, "at")
        .agg(pl.col("step").sum())
        .sort(*by, "at")
        .select(
            *by,
            pl.col("at").alias("start_ns"),
            (following.over(by) if by else following).alias("end_ns"),
            (running.over(by) if by else running).alias("depth"),
        )
        .filter(pl.col("end_ns").is_not_null())
        .collect()
    )


def intersect(left: pl.DataFrame, right: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return every overlap of a left interval with a right one of the same group.

    Args:
        left: Intervals with any further columns; may overlap each other.
        right: Intervals disjoint within each group (a union, a step function, steps).
        by: Group columns.

    Returns:
        `left`'s columns, then `right`'s other columns, `start_ns` and `end_ns` of the overlap; in
        left order. Cost: a binary search per left row plus the number of overlaps.

    Raises:
        ValueError: A column other than `by` and the times is in both.
    """
    extra = [name for name in right.columns if name not in {*by, "start_ns", "end_ns"}]
    if both := set(extra) & set(left.columns):
        raise ValueError(f"columns in both frames: {sorted(both)}")
    if left.is_empty() or right.is_empty():
        return left.clear().with_columns(
            pl.lit(None, right.schema[name]).alias(name) for name in extra
        )
    # A code per group of `right`: null is a group too, and an as-of join would drop it.
    groups = right.lazy().select(*by).unique().with_row_index("_group").collect().lazy()
    ordered = _with_code(right.lazy(), groups, by).sort("_group", "start_ns")
    ordered = ordered.with_row_index("_right")
    keyed = _with_code(left.lazy().with_row_index("_left"), groups, by)
    # Disjoint intervals are ordered by start and by end at once, so those that meet a left interval
    # are a run: from the first that ends after its start to the last that starts before its end.
    first = ordered.select("_group", "_right", _key=pl.col("end_ns") - 1).sort("_key")
    last = ordered.select("_group", "_right", _key="start_ns").sort("_key")
    probe = keyed.select("_group", "_left", "start_ns", _end=pl.col("end_ns") - 1)
    low = probe.sort("start_ns").join_asof(
        first,
        left_on="start_ns",
        right_on="_key",
        by="_group",
        strategy="forward",
        check_sortedness=False,
    )
    high = probe.sort("_end").join_asof(
        last,
        left_on="_end",
        right_on="_key",
        by="_group",
        strategy="backward",
        check_sortedness=False,
    )
    runs = (
        low.select("_left", _low=pl.col("_right").cast(pl.Int64))
        .join(high.select("_left", _high=pl.col("_right").cast(pl.Int64)), on="_left")
        .filter(pl.col("_low") <= pl.col("_high"))
        .with_columns(_right=pl.int_ranges("_low", pl.col("_high") + 1))
        .select("_left", "_right")
        .explode("_right")
        .with_columns(pl.col("_right").cast(pl.UInt32))
    )
    other = ordered.select("_right", *extra, _start="start_ns", _end="end_ns")
    return (
        runs.join(keyed, on="_left")
        .join(other, on="_right")
        .sort("_left", "_right")
        .with_columns(
            start_ns=pl.max_horizontal("start_ns", "_start"),
            end_ns=pl.min_horizontal("end_ns", "_end"),
        )
        .filter(pl.col("start_ns") < pl.col("end_ns"))
        .select(*left.columns, *extra)
        .collect()
    )


def _with_code(frame: pl.LazyFrame, groups: pl.LazyFrame, by: Sequence[str]) -> pl.LazyFrame:
    if not by:
        return frame.with_columns(_group=pl.lit(0, pl.UInt32))
    return frame.join(groups, on=list(by), nulls_equal=True, maintain_order="left")


def overlapping_host(frame: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of a host table (calls, ranges) that meet the host window, unclipped.

    Args:
        frame: Rows with `start_ns` and `end_ns`; instants count when inside.
        windows: The `windows` table; its row with a null device is the host's, null is unbounded.
    """
    host = windows.filter(pl.col("device_id").is_null())
    if host.is_empty():
        return frame
    start_ns, end_ns = host.select("start_ns", "end_ns").row(0)
    if start_ns is not None:
        instant = (pl.col("start_ns") == pl.col("end_ns")) & (pl.col("start_ns") >= start_ns)
        frame = frame.filter((pl.col("end_ns") > start_ns) | instant)
    return frame if end_ns is None else frame.filter(pl.col("start_ns") < end_ns)


def with_parents(
    ranges: pl.DataFrame, by: Sequence[str], id_name: str = "range_id"
) -> pl.DataFrame:
    """Return `ranges` with `parent_id`: the innermost range of its group around each.

    Ranges of one group (a thread) are taken to nest. Where two cross by a clock tick, the one that
    began first and is still open counts as the parent. Of two equal ranges the first row is the
    outer one. Cost: three sorts, no loop over rows.
    """
    if ranges.is_empty():
        return ranges.with_columns(parent_id=pl.lit(None, ranges.schema[id_name]))
    ordered = (
        ranges.lazy()
        .with_row_index("_row")
        .sort(*by, "start_ns", pl.col("end_ns").neg(), "_row")
        .with_row_index("_rank")
    )
    # At one instant ends come before starts, so that a range does not hold the one that follows it;
    # an instant opens and closes at once, before whatever opens after it.
    starts = ordered.select(*by, "_rank", at="start_ns", order=pl.lit(1), step=pl.lit(1))
    is_instant = (pl.col("start_ns") == pl.col("end_ns")).cast(pl.Int32)
    ends = ordered.select(*by, "_rank", at="end_ns", order=is_instant, step=pl.lit(-1))
    level = pl.col("step").cum_sum()
    opened = (
        pl.concat([starts, ends])
        .sort(*by, "at", "order", "_rank", pl.col("step").neg())
        .with_columns(level=level.over(by) if by else level)
        .filter(pl.col("step") == 1)
        .select("_rank", "level")
        .sort("_rank")
    )
    levels = ordered.join(opened, on="_rank", maintain_order="left")
    group = pl.struct(by).rank("dense") if by else pl.lit(0)
    keyed = levels.with_columns(_group=group).collect().lazy()
    outer = keyed.select("_group", "_rank", parent_id=id_name, _level=pl.col("level") + 1)
    return (
        keyed.join_asof(
            outer.sort("_rank"),
            on="_rank",
            by_left=["_group", "level"],
            by_right=["_group", "_level"],
            strategy="backward",
            allow_exact_matches=False,
            check_sortedness=False,
        )
        .sort("_row")
        .select(*ranges.columns, "parent_id")
        .collect()
    )


def total_ns(frame: pl.DataFrame) -> int:
    """Return the summed length of the intervals."""
    return int(frame.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item() or 0)
