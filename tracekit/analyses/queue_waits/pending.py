"""When waits are pending, in which lane, and when one might be that the trace does not tell of."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.api_calls import is_captured
from tracekit.call_numbers import missing_calls
from tracekit.intervals.matching import nearest
from tracekit.tables.rows import rows_of

Int64s = npt.NDArray[np.int64]

# A wait reaches its hardware queue some time after its call returned, and is polled for some time
# after what it waits for is done; no trace says how long. Within this time of either end it is open
# whether the wait is pending. Assumed: submitting takes a few microseconds (`launches`).
EDGE_NS = 5_000
_SIDES = ("waiting_queue_id", "waiting_stream_id", "recording_queue_id", "recording_stream_id")
SPELLS = pl.Schema(
    {
        "device_id": pl.Int32(),
        "lane_id": pl.Int32(),
        **dict.fromkeys(_SIDES, pl.Int32()),
        "evidence": pl.String(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "until_ns": pl.Int64(),
        "is_known": pl.Boolean(),
        "is_wait": pl.Boolean(),
    }
)


@dataclass(frozen=True)
class Lanes:
    """What counts as a hardware queue on each device.

    Attributes:
        with_queues: Devices whose ops name queues; on all others streams stand for them.
        device_of_queue: By `queue_id`.
        device_of_stream: By `stream_id`.
        devices_of_process: `process_id`, `device_id`.
    """

    with_queues: tuple[int, ...]
    device_of_queue: dict[int, int]
    device_of_stream: dict[int, int]
    devices_of_process: pl.DataFrame

    def lane(self, side: str = "") -> pl.Expr:
        """Return the lane of a row that has `device_id` and the queue and stream of a side."""
        has_queues = pl.col("device_id").is_in(self.with_queues)
        return pl.when(has_queues).then(f"{side}queue_id").otherwise(f"{side}stream_id")

    def on_devices(self, waits: pl.DataFrame) -> pl.DataFrame:
        """Add `device_id`, of the waiting queue or stream; all of the process if neither tells."""
        found = (
            pl.col(column).replace_strict(known, default=None, return_dtype=pl.Int32)
            for column, known in (
                ("waiting_queue_id", self.device_of_queue),
                ("waiting_stream_id", self.device_of_stream),
            )
        )
        placed = waits.with_columns(found=pl.coalesce(*found))
        known = placed.filter(pl.col("found").is_not_null()).rename({"found": "device_id"})
        others = placed.filter(pl.col("found").is_null()).drop("found")
        anywhere = others.join(self.devices_of_process, on="process_id")
        return pl.concat([known, anywhere])


def lanes_of(ops: pl.DataFrame, queues: pl.DataFrame, streams: pl.DataFrame) -> Lanes:
    """Return the lanes of a trace. Columns: those of the three tables' ids."""
    has_queue = pl.col("queue_id").is_not_null() & (pl.col("kind") != "barrier")
    named = ops.select(pl.col("device_id").filter(has_queue).unique().drop_nulls())
    used = ops.select("process_id", "device_id").unique().drop_nulls()
    return Lanes(
        tuple(named["device_id"]),
        dict(queues.select("queue_id", "device_id").drop_nulls().iter_rows()),
        dict(streams.select("stream_id", "device_id").drop_nulls().iter_rows()),
        used,
    )


def spells(
    waits: pl.DataFrame,
    calls: pl.DataFrame,
    marks: pl.DataFrame,
    ops: pl.DataFrame,
    ranges: pl.DataFrame,
    lanes: Lanes,
) -> pl.DataFrame:
    """Return the time of each wait that can have been pending in a hardware queue, `SPELLS`.

    Left out are waits whose own lane recorded the event: its order satisfies them. `end_ns` is null
    where the trace does not say; then `until_ns` is the latest it can be: the start of the first op
    that the waiting stream was given later, or the end of the next wait of it, else the end of all
    ops. `is_known` says that both times and both lanes are known. A wait call without a row in
    `waits`, or a marker of a wait without a call, is one with unknown end, unless its thread was
    capturing a graph: then no stream waits. A call that is missing by its number may have been a
    wait, though none that counts (`is_wait`), until the host next waits for the whole device.

    Args:
        waits: The table.
        calls: `call_id`, `process_id`, `thread_id`, `kind`, `name`, `start_ns`, `end_ns`,
            `stream_id`.
        marks: `process_id`, `thread_id`, `time_ns`, `statement`, `stream_id`, `call_id`.
        ops: `stream_id`, `device_id`, `start_ns`, `end_ns`, `call_id`, `graph_launch_id`.
        ranges: Markers, which take numbers as calls do.
        lanes: `lanes_of`.
    """
    columns = ["process_id", *_SIDES, "wait_call_id", "pending_start_ns", "pending_end_ns"]
    columns.append("evidence")
    asked = pl.concat(
        [waits.select(columns).cast({"evidence": pl.String}), _unfollowed(waits, calls, marks)],
        how="diagonal",
    )
    placed = lanes.on_devices(asked).with_columns(
        lane_id=lanes.lane("waiting_"), recording_lane=lanes.lane("recording_")
    )
    elsewhere = placed.filter(
        (pl.col("lane_id") != pl.col("recording_lane")).fill_null(value=True)
        & (pl.col("waiting_stream_id") != pl.col("recording_stream_id")).fill_null(value=True)
    )
    both = pl.col("lane_id").is_not_null() & pl.col("recording_lane").is_not_null()
    timed = pl.col("pending_start_ns").is_not_null() & pl.col("pending_end_ns").is_not_null()
    told = _bounded(elsewhere, ops, calls).with_columns(
        end_ns="pending_end_ns", is_known=both & timed, is_wait=pl.lit(value=True)
    )
    found = pl.concat([told, _lost(calls, ranges, ops, lanes)], how="diagonal_relaxed")
    return found.select(pl.col(name).cast(dtype) for name, dtype in SPELLS.items()).filter(
        (pl.col("start_ns") < pl.col("end_ns")).fill_null(value=True)
    )


def _unfollowed(waits: pl.DataFrame, calls: pl.DataFrame, marks: pl.DataFrame) -> pl.DataFrame:
    """Return the waits that a call or a marker speaks of and that have no row in `waits`."""
    columns = ["process_id", "thread_id", "call_id", "start_ns", "end_ns", "stream_id"]
    called = calls.filter(pl.col("kind") == "event_wait").select(columns)
    at = pl.col("time_ns")
    marked = marks.filter(pl.col("statement") == "wait").with_columns(start_ns=at, end_ns=at)
    known = rows_of(marked["call_id"], calls.select("call_id", "kind"), "call_id")["kind"]
    uncalled = marked.filter(known.is_null()).select(columns)
    followed = waits.select(call_id="wait_call_id").drop_nulls()
    left = pl.concat([called, uncalled]).join(followed, on="call_id", how="anti")
    return left.filter(~is_captured(left, calls)).select(
        "process_id", waiting_stream_id="stream_id", pending_start_ns="end_ns"
    )


def _lost(
    calls: pl.DataFrame, ranges: pl.DataFrame, ops: pl.DataFrame, lanes: Lanes
) -> pl.DataFrame:
    """Return the time in which a missing call's wait can be pending: from the call before it on."""
    missing = missing_calls(calls, ranges).select("process_id", before_ns="start_ns")
    some = calls if missing.height else calls.clear()
    begun = some.select("process_id", "start_ns").sort("start_ns")
    ended = calls.filter(pl.col("kind") == "device_sync").select("process_id", until_ns="end_ns")
    asked = missing.with_columns(moment=pl.col("before_ns") - 1).sort("before_ns")
    by = ["process_id"]
    found = nearest(asked, begun, left_on="moment", right_on="start_ns", by=by)
    over = nearest(
        found,
        ended.sort("until_ns"),
        left_on="before_ns",
        right_on="until_ns",
        by=by,
        strategy="forward",
    )
    return over.join(lanes.devices_of_process, on="process_id").select(
        "device_id",
        start_ns=pl.coalesce("start_ns", "before_ns"),
        until_ns=pl.coalesce("until_ns", pl.lit(ops["end_ns"].max()) + 1),
        is_known=pl.lit(value=False),
        is_wait=pl.lit(value=False),
    )


def _bounded(waits: pl.DataFrame, ops: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Add `start_ns` and `until_ns`, the earliest and latest that each wait can be pending.

    A stream does in order what it was given: a wait is over when anything begins, or another wait
    ends, that its stream was given later. What was given before may still begin after the call.
    """
    low, high = ops.select(pl.col("start_ns").min(), pl.col("end_ns").max() + 1).row(0)
    stream = "waiting_stream_id"
    unclear = pl.any_horizontal(pl.col("pending_start_ns", "pending_end_ns").is_null())
    streams = waits.filter(unclear)[stream].unique()
    work = ops.filter(pl.col("stream_id").is_in(streams.implode())).select(
        "start_ns",
        "end_ns",
        pl.col("stream_id").alias(stream),
        call_id=pl.coalesce("graph_launch_id", "call_id"),
    )
    called = rows_of(work["call_id"], calls.select("call_id", at="start_ns"), "call_id")
    given = work.select(stream, next_ns="start_ns").with_columns(called)
    asked = rows_of(waits["wait_call_id"], calls.select("call_id", at="end_ns"), "call_id")
    waits = waits.with_columns(asked_ns=pl.coalesce(asked["at"], "pending_start_ns"))
    ended = waits.select(stream, next_ns="pending_end_ns", at="asked_ns")
    over = pl.concat([given, ended]).drop_nulls().sort("at", "next_ns")
    unended = nearest(
        waits.with_row_index("wait").sort("asked_ns"),
        over,
        left_on="asked_ns",
        right_on="at",
        by=[stream],
        strategy="forward",
    )
    before = work.select(stream, "start_ns", last_ns="end_ns").sort("start_ns")
    before = before.with_columns(pl.col("last_ns").cum_max().over(stream))
    unbegun = nearest(
        unended.sort("pending_end_ns"),
        before,
        left_on="pending_end_ns",
        right_on="start_ns",
        by=[stream],
    )
    return unbegun.sort("wait").with_columns(
        start_ns=pl.coalesce("pending_start_ns", "last_ns", pl.lit(low)),
        until_ns=pl.coalesce("pending_end_ns", "next_ns", pl.lit(high)),
    )


def elsewhere(lane: pl.DataFrame, starts: Int64s, ends: Int64s, pending: pl.DataFrame) -> Int64s:
    """Return how many pending intervals of other lanes of its device meet each `[start, end)`.

    Counted as those that begin before the end less those that end at or before the start; all of
    the device's less the own lane's. Cost: four binary searches per row, twice.

    Args:
        lane: `device_id` and `lane_id` per row.
        starts: Per row.
        ends: Per row, after its start.
        pending: `device_id`, `lane_id`, `start_ns`, `end_ns`; a null lane is every lane's other.
    """
    live = pending.filter(pl.col("start_ns") < pl.col("end_ns"))
    if live.is_empty() or not len(starts):
        return np.zeros(len(starts), np.int64)
    everywhere = _meeting(lane, starts, ends, live, ["device_id"])
    return everywhere - _meeting(lane, starts, ends, live, ["device_id", "lane_id"])


def in_lane(lane: pl.DataFrame, starts: Int64s, ends: Int64s, pending: pl.DataFrame) -> Int64s:
    """Return how many pending intervals of its own lane meet each `[start, end)`.

    Args: as of `elsewhere`.
    """
    live = pending.filter(pl.col("start_ns") < pl.col("end_ns"))
    if live.is_empty() or not len(starts):
        return np.zeros(len(starts), np.int64)
    return _meeting(lane, starts, ends, live, ["device_id", "lane_id"])


def _meeting(
    lane: pl.DataFrame, starts: Int64s, ends: Int64s, live: pl.DataFrame, by: list[str]
) -> Int64s:
    groups = live.select(by).unique().drop_nulls().with_row_index("group", offset=1)

    def group(rows: pl.DataFrame) -> Int64s:
        found = rows.select(by).join(groups, on=by, how="left", maintain_order="left")["group"]
        return found.fill_null(0).cast(pl.Int64).to_numpy()

    # Group 0 has no intervals: whoever is in it meets none. Times beyond all others change nothing.
    grouped = live.join(groups, on=by, how="semi")
    low = int(grouped["start_ns"].min() or 0) - 1  # type: ignore[arg-type]
    high = int(grouped["end_ns"].max() or 0) + 1  # type: ignore[arg-type]
    base = group(lane) * (high - low + 1)
    own = group(grouped) * (high - low + 1)
    begun = np.sort(own + grouped["start_ns"].to_numpy() - low)
    over = np.sort(own + grouped["end_ns"].to_numpy() - low)
    begin_before = np.searchsorted(begun, base + np.clip(ends, low, high) - low, "left")
    end_by = np.searchsorted(over, base + np.clip(starts, low, high) - low, "right")
    return begin_before - end_by
