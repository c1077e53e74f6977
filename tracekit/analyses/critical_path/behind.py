"""What stands behind an op besides the order of its lane: an event wait, or the host."""

from bisect import bisect_right
from dataclasses import dataclass

import polars as pl

from tracekit.api_calls import untold_waits
from tracekit.idle_time.gaps import is_first_of_call
from tracekit.intervals.matching import nearest
from tracekit.tables.rows import rows_of

_THREAD = ["process_id", "thread_id"]
# In place of the row that a link leads to.
NO_LINK = -1


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
    placed = nodes.with_row_index("at")
    held = nearest(
        pending,
        _first_in(pending["stream"].unique(), placed, calls),
        left_on="asked_ns",
        right_on="call_start_ns",
        by=["stream"],
        strategy="forward",
    ).filter(pl.col("wait_ns") <= pl.col("start_ns"))
    latest = (
        held.join(_ends_in_streams(placed, held), on=["recording_stream_id", "wait_ns"], how="left")
        .sort("wait_ns", "wait_at", nulls_last=False)
        .unique("at", keep="last")
    )
    return pl.DataFrame(
        pl.repeat(None, nodes.height, dtype=latest.schema[name], eager=True)
        .scatter(latest["at"], latest[name])
        .alias(name)
        for name in ("wait_ns", "wait_at")
    )


def _first_in(streams: pl.Series, placed: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the first op of each call that submitted to one of some streams, in order of calls."""
    some = placed if streams.len() else placed.clear()
    some = some.select("at", "start_ns", "call_id", "call_start_ns", stream="lane_stream")
    some = some.drop_nulls("stream")
    return (
        some.filter(is_first_of_call(some, calls), pl.col("stream").is_in(streams.implode()))
        .drop("call_id")
        .sort("call_start_ns", maintain_order=True)
    )


def _ends_in_streams(placed: pl.DataFrame, held: pl.DataFrame) -> pl.DataFrame:
    """Return the op that ends at the end of a wait in a stream, the first of several.

    A graph's op ends in its own stream and in the one that the graph was launched on.
    """
    ending = placed.filter(pl.col("end_ns").is_in(held["wait_ns"].unique().implode()))
    streams = [
        ending.select(recording_stream_id=name, wait_at="at", wait_ns="end_ns")
        for name in ("stream_id", "lane_stream")
    ]
    by = ["recording_stream_id", "wait_ns"]
    return pl.concat(streams).sort("wait_at").unique(by, keep="first")


@dataclass(frozen=True)
class Released:
    """The blocking calls, in order of their return.

    Attributes:
        calls: `process_id, thread_id, blocking_call_id, back_ns` (when it returned), `released_ns`
            (when device work had released it), `host_at` (the row of the op that ended then, the
            first of several; null where none did) and `began` (when that op began).
        threads: By process and thread, the rows of its calls and when they returned.
    """

    calls: pl.DataFrame
    threads: dict[tuple[object, ...], tuple[list[int], list[int]]]

    def behind(
        self, process_id: int | None, thread_id: int | None, call_ns: int, start_ns: int
    ) -> tuple[int | None, int]:
        """Return the call behind the submission of an op, and the row of the op that released it.

        That is the last call of the thread that had returned when the op's began. What seems to
        begin after the launch is no link.

        Args:
            process_id: Of the op.
            thread_id: The thread that submitted it.
            call_ns: When its call began.
            start_ns: When it started.
        """
        rows, back_ns = self.threads.get((process_id, thread_id), ([], []))
        asked_ns = min(call_ns, start_ns)
        place = bisect_right(back_ns, asked_ns)
        if not place:
            return None, NO_LINK
        row = rows[place - 1]
        # One value at a time: this is asked for every submission on a path.
        host_at, began, released_ns = (
            self.calls.item(row, name) for name in ("host_at", "began", "released_ns")
        )
        is_link = began is not None and began < min(released_ns, asked_ns)
        return row, host_at if is_link else NO_LINK


def released_calls(nodes: pl.DataFrame, blockers: pl.DataFrame) -> Released:
    """Return the blocking calls with the op whose end released each.

    Args:
        nodes: In order of rank.
        blockers: `idle_time.blocking.with_unknown`.
    """
    by = ["process_id", "released_ns"]
    # Of a call that is lost nobody knows which op had released it.
    is_known = pl.col("call_id") >= 0
    released = blockers.select(pl.col("released_ns").filter(is_known).unique()).to_series()
    ended = pl.col("released_ns").is_in(released.implode())
    ends = (
        nodes.select("process_id", released_ns="end_ns", began="start_ns")
        .with_row_index("host_at")
        .filter(ended)
        .unique(by, keep="first", maintain_order=True)
    )
    calls = (
        blockers.join(ends, on=by, how="left")
        .with_columns(pl.when(is_known).then(pl.col("host_at", "began")))
        .select(*_THREAD, "host_at", "began", "released_ns", "end_ns", "call_id")
        .rename({"end_ns": "back_ns", "call_id": "blocking_call_id"})
        .sort("back_ns", "blocking_call_id")
    )
    # A call whose thread is not known stands behind nothing.
    known = calls.select(*_THREAD, "back_ns").with_row_index("row").drop_nulls(_THREAD)
    threads = known.partition_by(_THREAD, as_dict=True)
    return Released(
        calls, {key: (of["row"].to_list(), of["back_ns"].to_list()) for key, of in threads.items()}
    )


def behind_host(rows: pl.DataFrame, released: Released) -> pl.DataFrame:
    """Return `blocking_call_id, host_until_ns, blocked_ns` of the call behind each submission.

    Args:
        rows: `asked_ns` and `blocker`, the row of `released.calls`; null where there is none.
        released: `released_calls`.

    Returns:
        From `host_until_ns` to `blocked_ns` the call held the host after its work was done.
    """
    behind = released.calls.select(pl.all().gather(rows["blocker"])).with_columns(rows["asked_ns"])
    # The clocks of host and device differ a little: work may seem to end just after the call that
    # it released, and then the call gives way.
    until = pl.when(pl.col("released_ns").is_not_null()).then(
        pl.min_horizontal("released_ns", "asked_ns")
    )
    return behind.select(
        "blocking_call_id",
        host_until_ns=until,
        blocked_ns=pl.max_horizontal("back_ns", until),
    )


def may_hide_wait(
    rows: pl.DataFrame, nodes: pl.DataFrame, calls: pl.DataFrame, waits: pl.DataFrame
) -> pl.Series:
    """Return whether each op may have waited for another stream without the trace showing it.

    It may if its process has calls for event waits of which the trace does not say what they wait
    for (ROCm in Kineto files), and something ended on the device between what is known to have held
    the op and its start.

    Args:
        rows: Ops, with `gap_ns`, the end of what is known.
        nodes: All ops.
        calls: The `calls` table.
        waits: The `waits` table.
    """
    silent = untold_waits(calls, waits)["process_id"].unique()
    suspects = (
        rows.select("device_id", "process_id", "start_ns", "gap_ns")
        .with_row_index("row")
        .filter(
            pl.col("process_id").is_in(silent.implode()) & (pl.col("gap_ns") < pl.col("start_ns"))
        )
    )
    ends = nodes if suspects.height else nodes.clear()
    found = nearest(
        suspects.sort("start_ns"),
        ends.select("device_id", last_ns="end_ns").sort("last_ns"),
        left_on="start_ns",
        right_on="last_ns",
        by=["device_id"],
    ).filter(pl.col("last_ns") > pl.col("gap_ns"))
    is_suspect = pl.repeat(value=False, n=rows.height, eager=True)
    return is_suspect.scatter(found["row"], True).alias("may_hide_wait")
