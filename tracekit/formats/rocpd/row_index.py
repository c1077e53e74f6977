"""Row numbers by id. rocpd has no index on what it joins by, and its ids are nearly dense."""

from typing import cast

import polars as pl

_SMALL_SPAN = 1 << 20


class RowIndex:
    """Finds the row of each key: by arithmetic, through an array, or by a hash join.

    Ids that follow each other need arithmetic only. Nearly dense ones fill an array of row numbers,
    which takes a gather per key where a hash join takes a probe. The join remains for ids that are
    scattered (handles, merged files).

    Args:
        ids: Integer ids; null ids are never found, of equal ones the last row is.
    """

    def __init__(self, ids: pl.Series) -> None:
        self._array: pl.Series | None = None
        self._table: pl.DataFrame | None = None
        self._first, last = cast("int", ids.min() or 0), cast("int", ids.max() or 0)
        self._span = last - self._first + 1 if ids.len() > ids.null_count() else 0
        if (
            self._span == ids.len()
            and not ids.null_count()
            and (ids.diff(null_behavior="drop") == 1).all()
        ):
            return
        rows = pl.int_range(ids.len(), dtype=pl.UInt32, eager=True).alias("row")
        table = pl.DataFrame([ids.alias("id"), rows]).drop_nulls("id")
        if self._span <= max(4 * ids.len(), _SMALL_SPAN):
            places = (table["id"] - self._first).cast(pl.UInt32)
            empty = pl.repeat(None, self._span, dtype=pl.UInt32, eager=True)
            self._array = empty.scatter(places, table["row"])
        else:
            self._table = table.unique("id", keep="last")

    def rows(self, keys: pl.Series) -> pl.Series:
        """Return the row number of each key as UInt32, null where no row has it."""
        if self._table is not None:
            frame = keys.alias("id").cast(self._table["id"].dtype).to_frame()
            joined = frame.join(self._table, on="id", how="left", maintain_order="left")
            return joined["row"]
        place = pl.col("key") - self._first
        inside = pl.col("key").is_between(self._first, self._first + self._span - 1)
        places = (
            keys.cast(pl.Int64)
            .alias("key")
            .to_frame()
            .select(pl.when(inside).then(place).cast(pl.UInt32))
        )
        return places.to_series() if self._array is None else self._array.gather(places.to_series())


def looked_up(index: RowIndex, keys: pl.Series, values: pl.Series) -> pl.Series:
    """Return the value of each key, null where the key has no row."""
    return values.gather(index.rows(keys))
