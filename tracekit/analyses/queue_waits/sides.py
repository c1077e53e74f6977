"""On which side a dispatch is, with or without a pending wait, and in which cycle."""

import numpy as np
import polars as pl

from tracekit.analyses.queue_waits.pending import EDGE_NS, elsewhere, in_lane
from tracekit.cycles import cycles
from tracekit.intervals.matching import nearest
from tracekit.tables.activity import CALLS, OPS

# Late: a wait was pending, but the host submitted the kernel too late to tell what that cost.
WITHOUT, WITH, OPEN, LATE = range(4)


def sides(rows: pl.DataFrame, spells: pl.DataFrame) -> pl.Series:
    """Return the side of each row; times closer than `EDGE_NS` to the ends of a wait are open.

    Args:
        rows: `device_id`, `lane_id`, `before_ns` and `start_ns` (the cadence), `begun_ns` (when
            the dispatch itself begins).
        spells: `pending.spells`.
    """
    sure = spells.filter("is_known").with_columns(start_ns=pl.col("start_ns") + EDGE_NS)
    before, begun, start = (rows[name].to_numpy() for name in ("before_ns", "begun_ns", "start_ns"))
    lane = rows.select("device_id", "lane_id")
    is_with = elsewhere(lane, begun, begun + 1, sure) > 0
    # A dispatch of no length still begins at an instant.
    is_without = elsewhere(lane, before, np.maximum(start, before + 1), _possible(spells)) == 0
    number = np.where(is_with, WITH, np.where(is_without, WITHOUT, OPEN))
    return pl.Series("side", number.astype(np.int8))


def is_held(rows: pl.DataFrame, spells: pl.DataFrame) -> pl.Series:
    """Return whether a wait may have been pending in the row's own lane during its cadence."""
    before, start = (rows[name].to_numpy() for name in ("before_ns", "start_ns"))
    lane = rows.select("device_id", "lane_id")
    return pl.Series(in_lane(lane, before, np.maximum(start, before + 1), _possible(spells)) > 0)


def _possible(spells: pl.DataFrame) -> pl.DataFrame:
    # Where the end is unknown `until_ns` is the latest it can be.
    late = pl.when(pl.col("end_ns").is_not_null()).then(EDGE_NS).otherwise(0)
    return spells.with_columns(end_ns=pl.col("until_ns") + late)


def step_of(asked: pl.DataFrame, ranges: pl.DataFrame) -> pl.Series:
    """Return the number, from 0, of the marked step in which each call began; null outside of any.

    Args:
        asked: `process_id`, `thread_id`, `called_ns`.
        ranges: Markers `tk1 step` make the steps.
    """
    marked = ranges.filter(pl.col("text").str.starts_with("tk1 step "))
    if marked.is_empty():
        return pl.repeat(None, asked.height, dtype=pl.Int64, eager=True)
    # With nothing but these markers no other rule can find anything.
    steps = cycles(marked, OPS.empty(), CALLS.empty()).sort("start_ns").with_row_index("step_row")
    thread = ["process_id", "thread_id"]
    joined = nearest(
        asked.select(*thread, "called_ns").with_row_index("row").sort("called_ns"),
        steps.select(*thread, "step_row", step_ns="start_ns", until_ns="end_ns"),
        left_on="called_ns",
        right_on="step_ns",
        by=thread,
    )
    is_inside = pl.col("called_ns") < pl.col("until_ns")
    step = pl.when(is_inside).then(pl.col("step_row").cast(pl.Int64))
    return joined.sort("row").select(step=step).to_series()
