"""Happens-before: which work is ordered with which, by what, and how surely.

Work of one stream runs in the order of the calls. Beyond it, what orders work of two streams is a
record and a wait for it, the null stream and streams that block with it, or the host: it waited
for an event, a stream, a device or a blocking copy, and the same thread submitted the other work
afterwards. A graph launch is one piece of work of the stream it is launched on. The order in which
threads made their calls is taken as it was in this trace.

What a trace does not show never makes work unordered: streams with unknown flags may block, an
event that was asked for may have been done, a wait without its record, a `hipFree`, a callback, a
wait for a value and a call that is missing may have ordered everything. Such an order is
`Tie.ASSUMED`. So is what another thread has waited for, unless it was handed over by an event that
markers name on both sides.
"""

import numpy as np
import polars as pl

from tracekit.ordering.acts import acts_of
from tracekit.ordering.calls import host_calls
from tracekit.ordering.sweep import Tie, answers
from tracekit.tables.rows import rows_of

__all__ = ["Tie", "host_calls", "ties"]

OPS_AT_ONCE = 1_000_000
TIE = pl.Enum([tie.name.lower().replace("_", "-") for tie in Tie])


def ties(
    host: pl.DataFrame, pairs: pl.DataFrame, ops: pl.DataFrame, streams: pl.DataFrame
) -> pl.Series:
    """Return on what it rests that the earlier work of each pair ends before the later one starts.

    Args:
        host: `host_calls`.
        pairs: `earlier_place, earlier_stream_id, later_place`: places in `host`. Work that was
            submitted before recording began has place -1. The later work is what the call there
            submitted, so it has a stream.
        ops: `process_id, device_id`, for how many devices a process uses.
        streams: `stream_id, process_id, flags`.

    Returns:
        One of `TIE` per pair, the surest that holds: `none` where nothing orders them, null where
        a stream is not known.

    Cost: `sweep.answers` for each process; beside it sorts and joins of the calls.
    """
    # There are many more pairs than calls, so their width is what memory goes to.
    pairs = pairs.cast({"earlier_place": pl.Int32, "later_place": pl.Int32})
    counts = dict(_devices(ops).group_by("process_id").len().iter_rows())
    process = rows_of(pairs["later_place"], host.select("place", "process_id"), "place")
    asked = pairs.with_row_index("row").hstack(process).sort("later_place", maintain_order=True)
    found = np.full(pairs.height, len(Tie), np.int8)
    for key in process["process_id"].unique():
        some = _part(asked, key).drop("process_id")
        told = _of_process(_part(host, key), some, streams, counts.get(key, 0))
        found[told["row"].to_numpy()] = told["tie"].to_numpy()
    known = dict(enumerate(TIE.categories))
    return pl.Series(found).replace_strict(known, default=None, return_dtype=TIE)


def _devices(ops: pl.DataFrame) -> pl.DataFrame:
    """Return `process_id, device_id` of the devices that processes use; piecewise, for memory."""
    used = ops.select("process_id", "device_id")
    parts = [used.clear(), *(some.unique() for some in used.iter_slices(OPS_AT_ONCE))]
    return pl.concat(parts).unique().drop_nulls("device_id")


def _part(frame: pl.DataFrame, process: int | None) -> pl.DataFrame:
    """Return the rows of one process; nothing is copied if there is no other."""
    is_own = frame["process_id"].eq_missing(process)
    return frame if is_own.all() else frame.filter(is_own)


def _of_process(
    host: pl.DataFrame, asked: pl.DataFrame, streams: pl.DataFrame, num_devices: int
) -> pl.DataFrame:
    actors = _streams_of(host, asked, streams)
    threads = host.select("thread_id").unique(maintain_order=True).with_row_index("thread")
    threads = threads.with_columns(pl.col("thread").cast(pl.Int32) + actors.height)
    anyone = actors.height + threads.height
    number = actors.select("stream_id", "stream")
    of_stream = rows_of(host["stream_id"], number.select("stream_id", "stream"), "stream_id")
    of_thread = host.select("thread_id").join(
        threads, on="thread_id", how="left", maintain_order="left", nulls_equal=True
    )
    unneeded = ["process_id", "thread_id", "stream_id", "call_id", "start_ns", "end_ns"]
    numbered = host.drop(unneeded).hstack(of_stream).hstack(of_thread.select("thread"))
    known = numbered.select("place", has_record=pl.col("stream").is_not_null())
    has_record = rows_of(numbered["record_place"], known, "place")["has_record"]
    is_paired = pl.col("place").is_in(numbered["record_place"].drop_nulls().unique().implode())
    numbered = numbered.with_columns(has_record.fill_null(value=False), is_paired=is_paired)
    later = rows_of(asked["later_place"], numbered.select("place", "stream", "thread"), "place")
    earlier = rows_of(
        asked["earlier_stream_id"],
        number.select("stream_id", earlier_stream="stream"),
        "stream_id",
    )
    pairs = (
        asked.drop("earlier_stream_id")
        .hstack(later)
        .hstack(earlier)
        .drop_nulls(["stream", "earlier_stream"])
    )
    asks = pairs.group_by("later_place", "stream", "thread", maintain_order=True).agg(
        count=pl.len()
    )
    acts = acts_of(
        numbered,
        asks.rename({"later_place": "place"}),
        actors,
        anyone=anyone,
        num_devices=num_devices,
    )
    found = answers(
        acts,
        pairs.select(pl.col("earlier_stream"), pl.col("earlier_place")),
        streams=actors.height,
        actors=anyone + 1,
    )
    in_order = pl.col("stream") == pl.col("earlier_stream")
    tie = pl.when(in_order).then(pl.lit(int(Tie.STREAM), pl.Int8)).otherwise("found")
    return pairs.with_columns(found=pl.Series(found, dtype=pl.Int8)).select("row", tie=tie)


def _streams_of(host: pl.DataFrame, asked: pl.DataFrame, streams: pl.DataFrame) -> pl.DataFrame:
    """Return `stream, stream_id, flags` of the streams that calls or questions name."""
    named = pl.concat([host["stream_id"], asked["earlier_stream_id"]]).unique().drop_nulls()
    numbered = named.sort().to_frame("stream_id").with_row_index("stream")
    flags = streams.select("stream_id", pl.col("flags").cast(pl.String))
    return numbered.with_columns(pl.col("stream").cast(pl.Int32)).join(
        flags, on="stream_id", how="left", maintain_order="left"
    )
