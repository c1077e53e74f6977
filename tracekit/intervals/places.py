"""Places: (group, time) as one number, so that one sorted column serves all groups."""

from collections.abc import Sequence

import polars as pl


def lengthy(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the intervals that have a known length above zero."""
    return frame.filter(pl.col("start_ns") < pl.col("end_ns"))


def run_ids(frame: pl.DataFrame, by: Sequence[str]) -> pl.Series:
    """Return a number per row that changes where the group does, in frames ordered by group."""
    if not by:
        return pl.zeros(frame.height, dtype=pl.UInt32, eager=True)
    return frame.select(
        pl.struct(*by).rle_id() if len(by) > 1 else pl.col(*by).rle_id()
    ).to_series()


def group_base(group_numbers: pl.Series, low: int, high: int) -> pl.Series:
    """Return the place of each group's time 0; groups keep apart for times from `low` to `high`.

    Place = base + time, in order of group and then of time. Numbers count from −2; null becomes −2,
    before all others. In 64 bits where they suffice, which nearly always they do, else in 128.
    """
    numbers = group_numbers.cast(pl.Int64).fill_null(-2)
    span = high - low + 1
    groups = numbers.to_frame("number").select(pl.col("number").max()).item() or 0
    reach = (2 + max(0, groups)) * span + max(abs(low), abs(high))
    dtype = pl.Int64() if reach < 1 << 63 else pl.Int128()
    return pl.select(pl.lit(numbers).cast(dtype) * pl.lit(span, dtype)).to_series()


def placed(
    islands: pl.DataFrame, frame: pl.DataFrame, by: Sequence[str]
) -> tuple[pl.DataFrame, pl.Series, pl.Series]:
    """Return the islands in order with their places `_from` and `_until`, and those of `frame`.

    Returns:
        The islands, then a place per row of `frame` for its start and for its end. Times beyond all
        islands are drawn to the first start or last end, which changes no overlap; rows of a group
        without islands lie before all islands; unknown times have no place.
    """
    live = lengthy(islands)
    low, high = live.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    low, high = (0, 0) if low is None else (low, high)
    if by:
        groups = live.select(*by).unique().with_row_index("_group")
        live = live.join(groups, on=list(by), nulls_equal=True)
        rows = frame.select(*by).join(
            groups, on=list(by), how="left", nulls_equal=True, maintain_order="left"
        )
    else:
        live = live.with_columns(_group=pl.lit(0, pl.UInt32))
        rows = pl.DataFrame({"_group": pl.zeros(frame.height, dtype=pl.UInt32, eager=True)})
    numbers = pl.concat([rows["_group"], live["_group"]])
    bases = group_base(numbers, low, high)
    base, ordered = bases.head(frame.height), live.with_columns(_base=bases.tail(live.height))
    ordered = ordered.sort("_base", "start_ns").with_columns(
        _from=pl.col("_base") + pl.col("start_ns"), _until=pl.col("_base") + pl.col("end_ns")
    )
    start, end = (base + frame[name].clip(low, high) for name in ("start_ns", "end_ns"))
    return ordered, start, end
