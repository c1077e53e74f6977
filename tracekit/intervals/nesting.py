"""Which range lies in which: nesting without a stack, by following pointers in rounds."""

from collections.abc import Sequence

import polars as pl

from tracekit.intervals.places import run_ids


def with_parents(
    ranges: pl.DataFrame, by: Sequence[str], id_name: str = "range_id"
) -> pl.DataFrame:
    """Return `ranges` with `parent_id`: the innermost range of its group open when each begins.

    Of the ranges that began before it (or with it and last longer) and have not ended, the one that
    began last. Where ranges nest that is the range around it; where two cross, the one that began
    first counts as the parent. Of two equal ranges the first row is the outer one; an instant is
    nobody's parent. Cost: two sorts, then rounds over the rows not yet settled: about the depth of
    nesting plus log2 of the most siblings.
    """
    ordered = (
        ranges.lazy()
        .with_row_index("_row")
        .sort(*by, "start_ns", pl.col("end_ns").neg(), "_row")
        .collect()
    )
    group = run_ids(ordered, by)
    rank = pl.int_range(ordered.height, dtype=pl.Int64, eager=True)
    previous = rank.to_frame("rank").select(
        pl.when(group == group.shift(1)).then(pl.col("rank") - 1)
    )
    candidates = previous.to_series()
    longer = _settled(candidates, ordered["end_ns"], ordered["end_ns"], candidates)
    parents = _settled(candidates, ordered["end_ns"], ordered["start_ns"], longer)
    ids = ordered[id_name].gather(parents).alias("parent_id")
    return ordered.with_columns(ids).sort("_row").select(*ranges.columns, "parent_id")


def _settled(
    candidates: pl.Series, end_ns: pl.Series, limit_ns: pl.Series, skips: pl.Series
) -> pl.Series:
    """Return for each row the last earlier row that ends after the row's limit, null if none.

    `skips` leads from a row that ended too early to the next that may end later. Given the
    candidates themselves, a row's skip is as far as the row itself has come (pointer jumping).
    """
    settled = candidates.clone()
    follows_itself = skips is candidates
    open_rows = candidates.is_not_null().arg_true()
    while open_rows.len():
        at = settled.gather(open_rows)
        too_early = end_ns.gather(at) <= limit_ns.gather(open_rows)
        open_rows, at = open_rows.filter(too_early), at.filter(too_early)
        onward = (settled if follows_itself else skips).gather(at)
        settled = settled.scatter(open_rows, onward)
        open_rows = open_rows.filter(onward.is_not_null())
    return settled
