"""What a trace shows to have happened and does not hold: lost calls, and launches without an op.

A lost call may have held a thread, and a lost op may have run in what looks like a gap. Neither
changes what is seen; it says where that is no proof.
"""

from dataclasses import dataclass

import polars as pl

from tracekit.api_calls import launches_without_ops
from tracekit.idle_time.gaps import submitted_ops
from tracekit.intervals import covered_ns, union
from tracekit.intervals.matching import nearest
from tracekit.lost_calls import conform, lost_calls
from tracekit.remembered import remembered

# Stands for the stream of an op whose stream is not known.
_NO_STREAM = -1
_PROCESS = ["process_id"]


@dataclass(frozen=True, slots=True)
class Unseen:
    """What is known to be missing.

    Attributes:
        calls: `process_id, thread_id, end_ns`: calls that are lost and may have held their thread,
            and by when they had returned; thread null where it may be any.
        waits: The same of calls that may have made a stream wait.
        launches: The same of recorded calls whose op is lost.
        spans: `device_id, start_ns, end_ns`: when a lost op may have run, disjoint.
    """

    calls: pl.DataFrame
    waits: pl.DataFrame
    launches: pl.DataFrame
    spans: pl.DataFrame

    def may_fill(self, gaps: pl.DataFrame) -> pl.Series:
        """Return in which gaps, `device_id, start_ns, end_ns`, a lost op may have run."""
        if self.spans.is_empty():
            return pl.repeat(value=False, n=gaps.height, dtype=pl.Boolean, eager=True)
        return covered_ns(gaps, self.spans, ["device_id"]) > 0


@remembered
def unseen(
    ops: pl.DataFrame, calls: pl.DataFrame, marks: pl.DataFrame, ranges: pl.DataFrame
) -> Unseen:
    """Return what is missing from a trace and known to be. Costs little where nothing is.

    Args:
        ops: The `ops` table.
        calls: The `calls` table.
        marks: The `marks` table.
        ranges: The `ranges` table, for markers take numbers as calls do.
    """
    bare = launches_without_ops(calls, ops)
    nowhere = pl.lit(None, pl.Int64)
    lost, waits = lost_calls(ops, calls, marks, ranges)
    return Unseen(
        calls=lost,
        waits=waits,
        launches=conform(bare.select("process_id", "end_ns", thread_id=nowhere)),
        spans=_possible_runs(bare, submitted_ops(ops, calls), calls),
    )


def _possible_runs(
    bare: pl.DataFrame, submitted: pl.DataFrame, calls: pl.DataFrame
) -> pl.DataFrame:
    """Return when the ops of calls that have none may have run, on any device of their process.

    From the call on, and until a later op of its stream begins or a later wait for the only device
    returns. Where its stream is not known, a later op must have begun on each of the process's
    streams that still begins any.
    """
    lanes = submitted.select("process_id", "device_id").unique()
    if bare.is_empty():
        return lanes.clear().select(
            "device_id", start_ns=pl.lit(0, pl.Int64), end_ns=pl.lit(0, pl.Int64)
        )
    begun = (
        submitted.drop_nulls("call_start_ns")
        .select(
            "process_id",
            lane=pl.col("stream_id").fill_null(_NO_STREAM),
            after_ns="call_start_ns",
            begun_ns="start_ns",
        )
        .sort("after_ns")
    )
    streams = begun.select("process_id", "lane").unique()
    is_its = (pl.col("stream_id") == pl.col("lane")).fill_null(value=True)
    asked = bare.select("call_id", "process_id", "stream_id", "start_ns").join(
        streams, on="process_id"
    )
    later = nearest(
        asked.filter(is_its).with_columns(next_ns=pl.col("start_ns") + 1).sort("next_ns"),
        begun,
        left_on="next_ns",
        right_on="after_ns",
        by=["process_id", "lane"],
        strategy="forward",
    )
    over = later.group_by("call_id").agg(pl.col("begun_ns").max())
    # Of several devices a device sync does not say which it was for.
    several = lanes.drop_nulls().filter(pl.len().over(_PROCESS) > 1)["process_id"].unique()
    synced = calls.filter(
        pl.col("kind") == "device_sync", ~pl.col("process_id").is_in(several.implode())
    ).select("process_id", synced_ns="end_ns", sync_ns="start_ns")
    spans = nearest(
        bare.select("call_id", "process_id", "start_ns").sort("start_ns"),
        synced.sort("sync_ns"),
        left_on="start_ns",
        right_on="sync_ns",
        by=_PROCESS,
        strategy="forward",
    ).join(over, on="call_id", how="left")
    last = submitted["end_ns"].max()
    end = pl.min_horizontal("begun_ns", "synced_ns").fill_null(last)
    return union(
        spans.join(lanes, on="process_id").select("device_id", "start_ns", end_ns=end),
        ["device_id"],
    )
