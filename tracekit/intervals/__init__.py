"""Interval algebra on any frame with `start_ns` and `end_ns`: half-open, integer nanoseconds.

`by` names the columns that keep intervals apart (a device, a queue); null is a group of its own.
Empty intervals (`start_ns == end_ns`) and those with an unknown end have no length and vanish.
Nothing here loops over rows, and nothing slows down when there are as many groups as rows: few
groups are taken one by one (`apart`); many are told apart by a place, (group, time) in one number,
not by a window function. Rows that come ordered by start are not sorted again.
"""

from collections.abc import Sequence

import polars as pl

from tracekit.intervals.apart import MOST_GROUPS, apart, groups_of, islands_of, repeats_of
from tracekit.intervals.nesting import with_parents
from tracekit.intervals.places import lengthy, placed, run_ids, union_of_many

__all__ = [
    "clip",
    "covered_ns",
    "crowded",
    "depth",
    "gaps",
    "intersect",
    "overlapping_host",
    "starts_inside",
    "subtract",
    "total_ns",
    "union",
    "with_parents",
]


def union(frame: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the union of the intervals of each group.

    Returns:
        `[*by, start_ns, end_ns]`, disjoint, ordered by group and time; touching intervals are one.
        Cost: a running maximum per group, and a sort where rows do not come ordered by start.
    """
    live = lengthy(frame.select(*by, "start_ns", "end_ns"))
    groups = groups_of(live, by)
    if groups.height > MOST_GROUPS:
        return union_of_many(live, by)
    return pl.concat([islands_of(part) for part in apart(live, groups)])


def crowded(frame: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the time that two intervals or more of a group cover: `union` of `depth` ≥ 2.

    Returns:
        `[*by, start_ns, end_ns]`, disjoint, ordered by group and time. Cost: as `union`.
    """
    live = lengthy(frame.select(*by, "start_ns", "end_ns"))
    groups = groups_of(live, by)
    if groups.height > MOST_GROUPS:
        return union(depth(live, by).filter(pl.col("depth") >= 2), by)
    return pl.concat([islands_of(repeats_of(part)) for part in apart(live, groups)])


def clip(frame: pl.DataFrame, windows: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the parts of `frame` inside the one window of its group.

    Args:
        frame: Rows with `start_ns`, `end_ns` and the `by` columns.
        windows: `[*by, start_ns, end_ns]`, one row per group; rows of other groups are dropped. A
            null bound is no bound.
        by: Group columns.

    Returns:
        `frame`'s columns and order, `start_ns` and `end_ns` moved into the window; rows outside
        vanish, and so do rows of no length.
    """
    live = lengthy(frame)
    bounds = windows.select(*by, window_start="start_ns", window_end="end_ns")
    if not _cuts(live, bounds, by):
        return live
    return (
        live.lazy()
        .join(bounds.lazy(), on=list(by), how="inner", nulls_equal=True, maintain_order="left")
        .with_columns(
            start_ns=pl.max_horizontal("start_ns", "window_start"),
            end_ns=pl.min_horizontal("end_ns", "window_end"),
        )
        .filter(pl.col("start_ns") < pl.col("end_ns"))
        .drop("window_start", "window_end")
        .collect()
    )


def _cuts(live: pl.DataFrame, bounds: pl.DataFrame, by: Sequence[str]) -> bool:
    """Return whether a row lies in no window or not wholly in it, from each group's extent."""
    extents = live.group_by(by).agg(first=pl.col("start_ns").min(), last=pl.col("end_ns").max())
    inside = extents.join(bounds, on=list(by), how="inner", nulls_equal=True).filter(
        (pl.col("first") >= pl.col("window_start")).fill_null(value=True)
        & (pl.col("last") <= pl.col("window_end")).fill_null(value=True)
    )
    return inside.height < extents.height


def gaps(islands: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the time between the islands of each group, edges of a window not included.

    Args:
        islands: Disjoint and ordered within each group, as `union` returns them.
        by: Group columns.

    Returns:
        `[*by, start_ns, end_ns]`, ordered, each between two islands of one group.
    """
    group = pl.col("_group")
    following = pl.when(group == group.shift(-1)).then(pl.col("start_ns").shift(-1))
    return (
        islands.lazy()
        .with_columns(run_ids(islands, by).alias("_group"))
        .select(*by, start_ns="end_ns", end_ns=following)
        .filter(pl.col("start_ns") < pl.col("end_ns"))
        .collect()
    )


def depth(frame: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return how many intervals of each group cover each instant, as a step function.

    Returns:
        `[*by, start_ns, end_ns, depth]`: the longest segments of constant `depth` ≥ 0 from a
        group's first start to its last end, ordered, disjoint and without holes; +1 at each start,
        −1 at each end, summed per instant, so an end and a start at one instant meet without a
        spike. Cost: one sort of twice the rows.
    """
    live = lengthy(frame.select(*by, "start_ns", "end_ns"))
    starts = live.select(*by, at="start_ns", step=pl.lit(1, pl.Int64))
    ends = live.select(*by, at="end_ns", step=pl.lit(-1, pl.Int64))
    ordered = pl.concat([starts, ends]).sort(*by, "at")
    group, at = pl.col("_group"), pl.col("at")
    same_group = (group == group.shift(-1)).fill_null(value=False)
    is_last_at = ~(same_group & (at == at.shift(-1)).fill_null(value=False))
    # The steps of a group add up to zero, so one running sum serves all groups.
    return (
        ordered.lazy()
        .with_columns(run_ids(ordered, by).alias("_group"), depth=pl.col("step").cum_sum())
        .filter(is_last_at)
        .filter(pl.col("depth") != pl.col("depth").shift(1, fill_value=0))
        .select(*by, start_ns=at, end_ns=pl.when(same_group).then(at.shift(-1)), depth="depth")
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
        left order, then in time. Cost: two binary searches per left row plus the overlaps.

    Raises:
        ValueError: A column other than `by` and the times is in both.
    """
    extra = [name for name in right.columns if name not in {*by, "start_ns", "end_ns"}]
    if both := set(extra) & set(left.columns):
        raise ValueError(f"columns in both frames: {sorted(both)}")
    ordered, start, end = placed(right, left, by)
    # Disjoint intervals are ordered by start and by end at once, so those that meet a left interval
    # are a run: from the first that ends after its start to the last that starts before its end.
    low = ordered["_until"].search_sorted(start, "right")
    high = ordered["_from"].search_sorted(end)
    runs = (
        pl.DataFrame({"_left": pl.int_range(left.height, eager=True), "_low": low, "_high": high})
        .filter((low < high) & (left["start_ns"] < left["end_ns"]))
        .select("_left", _right=pl.int_ranges("_low", "_high"))
        .explode("_right")
    )
    other = ordered[runs["_right"]]
    return (
        left[runs["_left"]]
        .with_columns(other.select(*extra, _start="start_ns", _end="end_ns"))
        .with_columns(
            start_ns=pl.max_horizontal("start_ns", "_start"),
            end_ns=pl.min_horizontal("end_ns", "_end"),
        )
        .filter(pl.col("start_ns") < pl.col("end_ns"))
        .select(*left.columns, *extra)
    )


def covered_ns(frame: pl.DataFrame, islands: pl.DataFrame, by: Sequence[str]) -> pl.Series:
    """Return how much of each row of `frame` the islands of its group cover.

    Args:
        frame: Intervals, which may overlap each other.
        islands: Intervals disjoint within each group (a union).
        by: Group columns.

    Returns:
        One length per row of `frame`, in its order; 0 where the group has no islands, null where a
        bound is. Cost: two binary searches per row, however many islands a row spans.
    """
    ordered, start, end = placed(islands, frame, by)
    lengths = ordered["end_ns"] - ordered["start_ns"]
    covered_before = pl.concat([pl.Series([0], dtype=pl.Int64), lengths.cum_sum()])
    # Before the first island nothing ends: any place that lies before all others will do.
    nothing = pl.Series([start.min() or 0], dtype=start.dtype)
    end_before = pl.concat([nothing, ordered["_until"]])

    def covered_until(place: pl.Series) -> pl.Series:
        opened = ordered["_from"].search_sorted(place)
        beyond = (end_before.gather(opened) - place).clip(lower_bound=0)
        return covered_before.gather(opened) - beyond.cast(pl.Int64)

    covered = covered_until(end) - covered_until(start)
    return covered.alias("covered_ns")


def starts_inside(frame: pl.DataFrame, rows: pl.DataFrame, by: Sequence[str]) -> pl.Series:
    """Return how many of `rows` start inside each row of `frame` of the same group.

    Args:
        frame: Intervals, which may overlap each other.
        rows: Anything with `start_ns` and the `by` columns.
        by: Group columns.

    Returns:
        One count per row of `frame`, in its order; null where a bound is.
    """
    points = rows.select(*by, "start_ns", end_ns=pl.col("start_ns") + 1)
    ordered, start, end = placed(points, frame, by)
    starts = ordered["_from"]
    inside = starts.search_sorted(end).cast(pl.Int64) - starts.search_sorted(start)
    known = start.is_not_null() & end.is_not_null()
    return inside.set(~known, None).alias("starts_inside")


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


def subtract(left: pl.DataFrame, right: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the parts of the left intervals that no right interval of their group covers.

    Args:
        left: Intervals with any further columns; may overlap each other.
        right: Intervals of which only the times and `by` count; may overlap each other.
        by: Group columns, at least one.

    Returns:
        `left`'s columns. Together with `intersect` by a disjoint `right` it is all of `left`.
    """
    if left.is_empty() or right.is_empty():
        return left
    low, high = left["start_ns"].min(), left["end_ns"].max()
    islands = union(right, by)
    reach = islands.group_by(by).agg(first=pl.col("start_ns").min(), last=pl.col("end_ns").max())
    holes = pl.concat(
        [
            gaps(islands, by),
            reach.select(*by, start_ns=pl.lit(low, pl.Int64), end_ns="first"),
            reach.select(*by, start_ns="last", end_ns=pl.lit(high, pl.Int64)),
        ]
    ).filter(pl.col("start_ns") < pl.col("end_ns"))
    apart = left.join(reach, on=list(by), how="anti", nulls_equal=True)
    return pl.concat([intersect(left, holes, by), apart])


def total_ns(frame: pl.DataFrame) -> int:
    """Return the summed length of the intervals."""
    return int(frame.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item() or 0)
