"""Nearest row in time within groups, for tables with few groups and many rows."""

from collections.abc import Sequence
from typing import Literal

import polars as pl

# Up to so many groups each is matched by itself, on sorted columns and without a hash of every row.
_FEW = 64


def nearest(
    left: pl.DataFrame,
    right: pl.DataFrame,
    *,
    left_on: str,
    right_on: str,
    by: Sequence[str],
    strategy: Literal["backward", "forward"] = "backward",
) -> pl.DataFrame:
    """Return `left` with the columns of the nearest row of `right` in the same group.

    Args:
        left: Sorted by `left_on`.
        right: Sorted by `right_on`; no column of `left` except those of `by`.
        left_on: Time of a left row.
        right_on: Time of a right row.
        by: Group columns; a null belongs to no group and finds nothing.
        strategy: `backward` finds the last right row that is not later, `forward` the first that is
            not earlier.

    Returns:
        `left`'s columns and order, then `right`'s (null where there is none).
    """
    groups = left.select(by).unique()
    if groups.height > _FEW:
        return _hashed(left, right, left_on, right_on, by, strategy)
    numbered = left.with_row_index("_row")
    lefts = numbered.partition_by(by, as_dict=True, include_key=True)
    nothing = right.drop(by).clear()
    parts = [
        part.join_asof(
            nothing if None in key else _group(right, by, key),
            left_on=left_on,
            right_on=right_on,
            strategy=strategy,
            coalesce=False,
            check_sortedness=False,
        )
        for key, part in lefts.items()
    ]
    if len(parts) == 1:
        return parts[0].drop("_row")
    empty = numbered.clear().join_asof(
        nothing, left_on=left_on, right_on=right_on, coalesce=False, check_sortedness=False
    )
    return pl.concat([empty, *parts]).sort("_row").drop("_row")


def _group(right: pl.DataFrame, by: Sequence[str], key: tuple[object, ...]) -> pl.DataFrame:
    """Return the rows of one group without its columns; nothing is copied if there is no other."""
    mine = pl.all_horizontal(pl.col(name) == value for name, value in zip(by, key, strict=True))
    is_mine = right.select(mine.fill_null(value=False)).to_series()
    return (right if is_mine.all() else right.filter(is_mine)).drop(by)


def _hashed(
    left: pl.DataFrame,
    right: pl.DataFrame,
    left_on: str,
    right_on: str,
    by: Sequence[str],
    strategy: Literal["backward", "forward"],
) -> pl.DataFrame:
    return left.join_asof(
        right,
        left_on=left_on,
        right_on=right_on,
        by=list(by),
        strategy=strategy,
        coalesce=False,
        check_sortedness=False,
    )
