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
    rights = right.partition_by(by, as_dict=True, include_key=False)
    nothing = right.drop(by).clear()
    parts = [
        part.join_asof(
            rights.get(key, nothing) if None not in key else nothing,
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
