"""Slices of a table put together column by column, so that both are never held at once."""

from collections.abc import Iterable, Mapping

import polars as pl
from polars.datatypes import DataType


def stacked(slices: Iterable[pl.DataFrame], schema: Mapping[str, DataType]) -> pl.DataFrame:
    """Return the slices as one frame of contiguous columns.

    Each slice loses a column as soon as that is copied: the peak is the whole and one column.

    Args:
        slices: Frames that have the columns of `schema`, and may have more.
        schema: Columns to keep, in order, and their types if there is no slice.
    """
    parts = [part.select(*schema) for part in slices]
    if not parts:
        return pl.DataFrame(schema=dict(schema))
    columns = []
    for name in schema:
        columns.append(pl.concat([part[name] for part in parts], rechunk=True))
        parts = [part.drop(name) for part in parts]
    return pl.DataFrame(columns)
