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


def union_of_many(live: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the union of intervals that have a length, by one sort however many groups."""
    ordered = live.sort(*by, "start_ns")
    low, high = ordered.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    reach = (pl.col("_base") + pl.col("end_ns")).cum_max()
    before = pl.col("_reach").shift(1)
    opens = before.is_null() | (pl.col("_base") + pl.col("start_ns") > before)
    # An island ends where everything up to the next island's opening has ended.
    following = pl.col("_before").shift(-1).fill_null(pl.col("_last"))
    return (
        ordered.lazy()
        .with_columns(_base=group_base(run_ids(ordered, by), low, high))
        .with_columns(_reach=reach)
        .with_columns(_before=before, _last=pl.col("_reach").last())
        .filter(opens)
        .with_columns(end_ns=(following - pl.col("_base")).cast(pl.Int64))
        .select(*by, "start_ns", "end_ns")
        .collect()
    )


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
    # Numbered as they appear, so that the islands of a union come ordered by place.
    groups = live.select(*by).group_by(by, maintain_order=True).agg() if by else pl.DataFrame()
    numbers = pl.int_range(groups.height, dtype=pl.Int64, eager=True)
    bases = group_base(numbers.append(pl.Series([None], dtype=pl.Int64)), low, high)
    groups = groups.with_columns(bases.head(groups.height).alias("_base"))
    nowhere = pl.lit(bases[-1], bases.dtype)

    def base(rows: pl.DataFrame) -> pl.Series:
        if not by:
            return pl.zeros(rows.height, dtype=pl.Int64, eager=True)
        based = rows.select(*by).join(
            groups, on=list(by), how="left", nulls_equal=True, maintain_order="left"
        )
        return based.select(pl.col("_base").fill_null(nowhere)).to_series()

    base_ns = base(live)
    ordered = live.with_columns(_from=base_ns + live["start_ns"], _until=base_ns + live["end_ns"])
    if not ordered["_from"].is_sorted():
        ordered = ordered.sort("_from")
    base_ns = base(frame)
    start, end = (base_ns + frame[name].clip(low, high) for name in ("start_ns", "end_ns"))
    return ordered, start, end
