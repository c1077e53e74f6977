"""Few groups, one by one: what a running maximum finds in the rows of one, in order of start."""

from collections.abc import Sequence

import polars as pl

# Devices, streams, queues and threads are fewer. Beyond, a frame per group costs more than a sort.
MOST_GROUPS = 256


def groups_of(frame: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the groups of `frame` in no order, `by` only; none where there are no columns."""
    return frame.group_by(by).agg() if by else pl.DataFrame()


def apart(frame: pl.DataFrame, groups: pl.DataFrame) -> list[pl.DataFrame]:
    """Return `[*by, start_ns, end_ns]` of each group by start, the null and least groups first.

    Args:
        frame: Intervals with the columns of `groups`.
        groups: As `groups_of` returns them.

    Returns:
        At least one frame, which is empty when `frame` is.
    """
    by = groups.columns
    parts = [frame.select(*by, "start_ns", "end_ns")]
    if groups.height > 1:
        groups = groups.sort(by)
        telling = [name for name in by if groups[name].n_unique() > 1]
        times = frame.select(*telling, "start_ns", "end_ns").partition_by(
            telling, maintain_order=True, include_key=False, as_dict=True
        )
        # The key is one value for all rows: set, not carried through the partition.
        parts = [
            times[tuple(row[name] for name in telling)].select(
                *(pl.lit(row[name], groups.schema[name]).alias(name) for name in by),
                "start_ns",
                "end_ns",
            )
            for row in groups.iter_rows(named=True)
        ]
    return [part if part["start_ns"].is_sorted() else part.sort("start_ns") for part in parts]


def islands_of(part: pl.DataFrame) -> pl.DataFrame:
    """Return the union of one group's intervals, which have a length and are ordered by start."""
    reach = part["end_ns"].cum_max()
    opens = (part["start_ns"] > reach.shift(1)).fill_null(value=True)
    if opens.all():
        return part
    # An island ends where everything up to the next island's opening has ended.
    return part.filter(opens).with_columns(reach.filter(opens.shift(-1, fill_value=True)))


def repeats_of(part: pl.DataFrame) -> pl.DataFrame:
    """Return of each interval, ordered by start, what an earlier one of the group covers too.

    The earlier one that ends last covers all of it, for all began before. An instant in two
    intervals is in the part of the later one, so the union of the parts is where two overlap.
    """
    before = part["end_ns"].cum_max().shift(1).alias("_before")
    repeats = part.with_columns(before).filter(pl.col("start_ns") < pl.col("_before"))
    return repeats.with_columns(end_ns=pl.min_horizontal("end_ns", "_before")).drop("_before")
