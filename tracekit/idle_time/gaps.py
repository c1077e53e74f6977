"""Where a device idles, and the op and call that ended each gap."""

import numpy as np
import polars as pl

from tracekit.api_calls import queued_before_recording
from tracekit.remembered import remembered_in_use
from tracekit.tables.rows import rows_of

# Sorts before every time of a trace and leaves room to subtract.
BEFORE_EVERYTHING = -(1 << 62)


@remembered_in_use
def submitted_ops(ops: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the ops that keep a device busy, with the call that submitted each.

    Args:
        ops: The `ops` table. Barriers and ops of no length do not count.
        calls: The `calls` table.

    Returns:
        `op_id, kind, name, process_id, device_id, queue_id, stream_id, call_id, graph_launch_id,
        correlation_id, start_ns, end_ns`, ordered by start, with `call_start_ns, call_end_ns` (null
        where the call was not recorded), `free_ns` (end of everything that started before on the
        device; null for its first op), `is_within_graph` (an earlier op of the same graph launch
        has started) and `is_queued_before` (its correlation is older than the first recorded
        call's). A hardware queue is no serial lane, so `free_ns` is a running maximum, not the end
        of the row before.
    """
    counts = (ops["kind"] != "barrier") & (ops["start_ns"] < ops["end_ns"])
    work = ops if counts.all() else ops.filter(counts)
    times = calls.select("call_id", call_start_ns="start_ns", call_end_ns="end_ns")
    return (
        work.hstack(rows_of(work["call_id"], times, "call_id"))
        .with_columns(free_ns=pl.col("end_ns").cum_max().shift(1).over("device_id"))
        .select(
            "op_id",
            "kind",
            "name",
            "process_id",
            "device_id",
            "queue_id",
            "stream_id",
            "call_id",
            "graph_launch_id",
            "correlation_id",
            "start_ns",
            "end_ns",
            "call_start_ns",
            "call_end_ns",
            "free_ns",
            is_within_graph=_is_within_graph(work),
            is_queued_before=queued_before_recording(work, calls),
        )
    )


def _is_within_graph(work: pl.DataFrame) -> pl.Series:
    launched = work.select("op_id", "device_id", "graph_launch_id").drop_nulls("graph_launch_id")
    first = launched.unique(["device_id", "graph_launch_id"], keep="first", maintain_order=True)
    return work["graph_launch_id"].is_not_null() & ~work["op_id"].is_in(first["op_id"].implode())


def is_first_of_call(submitted: pl.DataFrame, calls: pl.DataFrame) -> pl.Series:
    """Return whether each op is the first in its frame of a recorded call; a graph's have several.

    Args:
        submitted: `call_id`.
        calls: The `calls` table.
    """
    numbered = calls.select("call_id").with_row_index("place")
    found = rows_of(submitted["call_id"], numbered, "call_id")["place"]
    place = found.fill_null(calls.height).to_numpy()
    rows = np.arange(len(place), dtype=np.uint32)
    first = np.zeros(calls.height + 1, np.uint32)
    # Written from the last op to the first, so that the first one stays.
    first[place[::-1]] = rows[::-1]
    return pl.Series("is_first_of_call", first[place] == rows) & found.is_not_null()


def ends_gap() -> pl.Expr:
    """Whether the device was idle right before an op of `submitted_ops`."""
    return pl.col("start_ns") > pl.col("free_ns")


def device_gaps(submitted: pl.DataFrame) -> pl.DataFrame:
    """Return one row per gap between ops of a device, with what ended it.

    Args:
        submitted: Any rows of `submitted_ops`.

    Returns:
        `device_id, process_id, start_ns, end_ns` and, of the op that ended the gap, `op_id,
        call_id, call_start_ns, call_end_ns, is_within_graph, is_queued_before`.
    """
    return submitted.filter(ends_gap()).select(
        "device_id",
        "process_id",
        "op_id",
        "call_id",
        "call_start_ns",
        "call_end_ns",
        "is_within_graph",
        "is_queued_before",
        pl.col("free_ns").alias("start_ns"),
        pl.col("start_ns").alias("end_ns"),
    )


def outside(submitted: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return the idle time of each window before its device's first op and after its last.

    Returns:
        `device_id, start_ns, end_ns`; nothing where the window begins and ends with ops, all of it
        where no op has a length. The time between ops is `device_gaps`' part, also where the window
        cuts it.
    """
    reach = submitted.group_by("device_id").agg(
        first_ns=pl.col("start_ns").min(), last_ns=pl.col("end_ns").max()
    )
    known = (
        windows.filter(pl.col("device_id").is_not_null())
        .join(reach, on="device_id", how="left")
        .with_columns(pl.col("first_ns", "last_ns").fill_null(pl.col("end_ns")))
    )
    before = known.select("device_id", "start_ns", end_ns=pl.min_horizontal("first_ns", "end_ns"))
    after = known.select(
        "device_id", start_ns=pl.max_horizontal("last_ns", "start_ns"), end_ns="end_ns"
    )
    return pl.concat([before, after]).filter(pl.col("start_ns") < pl.col("end_ns"))
