"""Replays of a graph with fewer ops than its others: a busy device then looks idle."""

import polars as pl

from tracekit.call_numbers import missing_calls
from tracekit.intervals import overlapping_host
from tracekit.trust import EVERY_PART, Check, Found, Touches, any_of
from tracekit.units import Unit, format_number

# What makes another graph of a handle, or of what a graph does; any of them may be of any graph.
_CHANGES = "GraphExec(Destroy|Update|.*Set)|Graph(Instantiate|NodeSet|.*SetParams)"
_GRAPH = ["process_id", "graph_exec_key", "graph_exec_id", "changes"]


def replays_with_fewer_ops(
    ops: pl.DataFrame, calls: pl.DataFrame, ranges: pl.DataFrame, windows: pl.DataFrame
) -> list[Found]:
    """Find the launches of an executable graph that have fewer ops than others of the same.

    An executable graph does the same each time until a call changes it or gives its handle to
    another, unless it has conditional nodes (CUDA 12.4). Its first launch is left out, for it may
    do more, and the last of each stream, whose ops may have run after recording ended. Launches
    without any op have a mark of their own.
    """
    replays = _replays(ops, calls, ranges)
    is_first = pl.int_range(pl.len()).over(_GRAPH) == 0
    start = pl.col("start_ns")
    is_last = start == start.max().over("process_id", "stream_id")
    asked = replays.filter(~is_first, ~is_last).with_columns(most=pl.col("ops").max().over(_GRAPH))
    inside = overlapping_host(asked, windows)
    fewer = inside.filter(pl.col("ops") < pl.col("most"))
    if fewer.is_empty():
        return []
    lost, launches = fewer.height, inside.height
    missing = int((fewer["most"] - fewer["ops"]).sum())
    return [
        Found(
            f"{lost:,} of {launches:,} graph launches that can be told "
            f"({format_number(lost / launches, Unit.SHARE)}) have fewer ops than others of the "
            f"same graph, {missing:,} in all: the device was busy for longer than it seems",
            {"launches_with_fewer": lost, "graph_launches": launches, "missing_ops": missing},
        )
    ]


def _replays(ops: pl.DataFrame, calls: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the launches of named graphs by start: their number of `ops`, and `_GRAPH`."""
    counted = (
        ops.filter(pl.col("kind") != "barrier")
        .drop_nulls("graph_launch_id")
        .group_by(call_id="graph_launch_id")
        .agg(pl.col("graph_exec_id").first(), ops=pl.len().cast(pl.Int64))
    )
    launches = calls.filter(pl.col("kind") == "graph_launch").join(counted, on="call_id")
    changing = calls.select("name").unique()
    changing = changing.filter(pl.col("name").cast(pl.String).str.contains(_CHANGES))
    changes = [
        calls.join(changing, on="name", how="semi").select("process_id", "start_ns"),
        missing_calls(calls, ranges).select("process_id", "start_ns"),
    ]
    placed = pl.concat(
        [*(some.with_columns(is_change=True) for some in changes), launches], how="diagonal_relaxed"
    ).sort("start_ns", "is_change", nulls_last=True)
    named = placed.with_columns(changes=pl.col("is_change").cum_count().over("process_id"))
    return named.filter(
        pl.col("is_change").is_null(),
        pl.col("graph_exec_key").is_not_null() | pl.col("graph_exec_id").is_not_null(),
    )


CHECK = Check(
    code="trust-graphs.replays-with-fewer-ops",
    label="ops of graph launches lost",
    touches=Touches(reads=any_of("ops"), parts=EVERY_PART),
    find=replays_with_fewer_ops,
    busy_is_at_least=True,
)
