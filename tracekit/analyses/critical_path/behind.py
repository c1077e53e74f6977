"""What stands behind an op besides the order of its lane: an event wait, or the host."""

import polars as pl

from tracekit.api_calls import untold_waits
from tracekit.intervals.matching import nearest
from tracekit.tables.rows import rows_of

_THREAD = ["process_id", "thread_id"]


def behind_wait(nodes: pl.DataFrame, calls: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """Return `wait_ns` and `wait_at` of each row: when the awaited work was done, and its last op.

    A wait holds the next op that is submitted to its stream. One whose work was done before it
    could hold anything is no link, nor one that ends after the op that it should have held began.
    """
    pending = waits.filter(pl.col("pending_start_ns") < pl.col("pending_end_ns")).select(
        "process_id",
        "wait_call_id",
        "recording_stream_id",
        stream="waiting_stream_id",
        wait_ns="pending_end_ns",
    )
    asked = rows_of(
        pending["wait_call_id"], calls.select("call_id", asked_ns="start_ns"), "call_id"
    )
    pending = pending.hstack(asked).drop_nulls(["stream", "asked_ns"]).sort("asked_ns")
    first = (
        nodes.select("at", "rank", "start_ns", "call_id", "call_start_ns", stream="lane_stream")
        .drop_nulls(["call_start_ns", "stream"])
        .sort("call_start_ns", "rank")
        .unique("call_id", keep="first", maintain_order=True)
        .drop("call_id", "rank")
    )
    held = nearest(
        pending,
        first,
        left_on="asked_ns",
        right_on="call_start_ns",
        by=["stream"],
        strategy="forward",
    ).filter(pl.col("wait_ns") <= pl.col("start_ns"))
    latest = (
        held.join(_ends_in_streams(nodes), on=["recording_stream_id", "wait_ns"], how="left")
        .sort("wait_ns", "wait_at", nulls_last=False)
        .unique("at", keep="last")
        .select("at", "wait_ns", "wait_at")
    )
    return nodes.select("at").join(latest, on="at", how="left", maintain_order="left").drop("at")


def _ends_in_streams(nodes: pl.DataFrame) -> pl.DataFrame:
    """Return the op that ends at a time in a stream, the first of several.

    A graph's op ends in its own stream and in the one that the graph was launched on.
    """
    streams = [
        nodes.select("rank", recording_stream_id=name, wait_at="at", wait_ns="end_ns")
        for name in ("stream_id", "lane_stream")
    ]
    by = ["recording_stream_id", "wait_ns"]
    return pl.concat(streams).sort("rank").unique(by, keep="first").drop("rank")


def behind_host(nodes: pl.DataFrame, blockers: pl.DataFrame) -> pl.DataFrame:
    """Return the blocking call behind each submission, and the op whose end released it."""
    ends = nodes.select("process_id", "rank", released_ns="end_ns", host_at="at", began="start_ns")
    released = (
        blockers.join(
            ends.sort("rank").unique(["process_id", "released_ns"], keep="first").drop("rank"),
            on=["process_id", "released_ns"],
            how="left",
        )
        .select(
            *_THREAD,
            "began",
            "host_at",
            "released_ns",
            blocking_call_id="call_id",
            back_ns="end_ns",
        )
        .sort("back_ns", "blocking_call_id")
    )
    asked = nodes.filter(pl.col("bound_by") == "call").select("at", *_THREAD, "asked_ns")
    found = (
        nearest(
            asked.sort("asked_ns"), released, left_on="asked_ns", right_on="back_ns", by=_THREAD
        )
        .drop_nulls("blocking_call_id")
        .with_columns(host_until_ns=pl.min_horizontal("released_ns", "asked_ns"))
    )
    # The clocks of host and device differ a little: work may seem to end just after the call that
    # it released, and then the call gives way. What seems to begin after the launch is no link.
    is_before = pl.col("began") < pl.col("host_until_ns")
    found = found.select(
        "at",
        "blocking_call_id",
        "host_until_ns",
        blocked_ns=pl.max_horizontal("back_ns", "host_until_ns"),
        host_at=pl.when(is_before).then("host_at"),
    )
    return nodes.select("at").join(found, on="at", how="left", maintain_order="left").drop("at")


def may_hide_wait(nodes: pl.DataFrame, calls: pl.DataFrame, waits: pl.DataFrame) -> pl.Series:
    """Return whether each op may have waited for another stream without the trace showing it.

    It may if its process has calls for event waits of which the trace does not say what they wait
    for (ROCm in Kineto files), and something ended on the device between what is known to have held
    the op and its start.

    Args:
        nodes: With `gap_ns`, the end of what is known.
        calls: The `calls` table.
        waits: The `waits` table.
    """
    silent = untold_waits(calls, waits)["process_id"].unique()
    suspects = nodes.select("at", "device_id", "process_id", "start_ns", "gap_ns").filter(
        pl.col("process_id").is_in(silent.implode()) & (pl.col("gap_ns") < pl.col("start_ns"))
    )
    ends = nodes if suspects.height else nodes.clear()
    found = nearest(
        suspects.sort("start_ns"),
        ends.select("device_id", last_ns="end_ns").sort("last_ns"),
        left_on="start_ns",
        right_on="last_ns",
        by=["device_id"],
    ).filter(pl.col("last_ns") > pl.col("gap_ns"))
    return nodes["at"].is_in(found["at"].implode()).alias("may_hide_wait")
