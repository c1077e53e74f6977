"""Rows of a table by their ids: a binary search each, where a join would build a hash table."""

import polars as pl


def rows_of(ids: pl.Series, frame: pl.DataFrame, id_name: str) -> pl.DataFrame:
    """Return the other columns of the row with each id; null where the id is null or not there.

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
    places = known.search_sorted(ids).clip(upper_bound=known.len() - 1)
    is_there = known.gather(places) == ids
    return others.select(pl.all().gather(pl.select(pl.when(is_there).then(places)).to_series()))
