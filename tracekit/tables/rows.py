"""Rows of a table without a join: by their ids, or as they start inside their device's window."""

import polars as pl


def rows_of(ids: pl.Series, frame: pl.DataFrame, id_name: str) -> pl.DataFrame:
    """Return the other columns of the row with each id; null where the id is null or not there.

    Where the ids have no holes a subtraction each, otherwise a binary search, where a join would
    build a hash table.

    Args:
        ids: Ids in any order, repeated or not.
        frame: Rows with ids that are unique and ascending.
        id_name: Name of the id column of `frame`.

    Returns:
        `frame` without its id column, one row per id, in their order.
    """
    known = frame[id_name]
    others = frame.drop(id_name)
    if known.is_empty():
        return others.clear().select(pl.all().extend_constant(None, ids.len()))
    places = _places(ids, known)
    return others.select(pl.all().gather(places))


def _places(ids: pl.Series, known: pl.Series) -> pl.Series:
    """Return the row of each id among ascending ones, null where it is not there."""
    first, last = known[0], known[-1]
    if last - first + 1 == known.len():
        is_there = ids.is_between(first, last)
        places: pl.Series = (ids - first).cast(pl.get_index_type(), strict=False)
        if is_there.all():
            return places
    elif last - first < ids.len():
        return _looked_up(ids, known)
    else:
        places = known.search_sorted(ids).clip(upper_bound=known.len() - 1)
        is_there = known.gather(places) == ids
    return pl.select(pl.when(is_there).then(places)).to_series()


def _looked_up(ids: pl.Series, known: pl.Series) -> pl.Series:
    """Return what `_places` does by a table of all ids from the first to the last known one."""
    first, last, dtype = known[0], known[-1], pl.get_index_type()
    table = pl.repeat(None, last - first + 1, dtype=dtype, eager=True)
    table = table.scatter(known - first, pl.int_range(known.len(), dtype=dtype, eager=True))
    place = pl.when(ids.is_between(first, last)).then((ids - first).cast(dtype, strict=False))
    return table.gather(pl.select(place).to_series())


def starting_inside(frame: pl.DataFrame, windows: pl.DataFrame, start: str) -> pl.DataFrame:
    """Return the rows that start inside the window of their device, in their order, unclipped.

    Args:
        frame: Rows with `device_id` and a time in the column `start`.
        windows: The `windows` table. A row without a device is inside the host's window; a null
            bound is none.
        start: Name of the column.
    """
    first = dict(windows.select("device_id", "start_ns").iter_rows())
    last = dict(windows.select("device_id", "end_ns").iter_rows())
    device = pl.col("device_id")
    first_ns = device.replace_strict(first, default=None, return_dtype=pl.Int64)
    last_ns = device.replace_strict(last, default=None, return_dtype=pl.Int64)
    has_window = device.is_in(list(first), nulls_equal=True)

    def is_inside(earliest: str, latest: str) -> pl.Expr:
        after, before = pl.col(earliest) >= first_ns, pl.col(latest) < last_ns
        return has_window & after.fill_null(value=True) & before.fill_null(value=True)

    starts = pl.col(start)
    reach = frame.group_by("device_id").agg(earliest=starts.min(), latest=starts.max())
    if reach.select(is_inside("earliest", "latest").all()).item():
        return frame
    return frame.filter(is_inside(start, start))
