"""Work that a copy may meet although the trace does not tell: its memory or itself is not seen."""

from collections.abc import Sequence
from typing import Literal

import polars as pl

from tracekit.intervals.matching import nearest
from tracekit.ordering.conflicts import MODES

# The stream of calls that are missing: nothing is in order with it but by the whole device.
NO_STREAM = -1
# So many streams are looked at for work whose memory is not known; those with the most of it.
MOST_STREAMS = 16
WORK = ("launch", "graph_launch", "copy", "fill")
_BOTH_WAYS: tuple[tuple[Literal["backward", "forward"], int], ...] = (
    ("backward", -1),
    ("forward", 1),
)


def undeclared(host: pl.DataFrame, placed: pl.DataFrame, accesses: pl.DataFrame) -> pl.DataFrame:
    """Return the work of which it is not known what memory it uses, or not whether that is all.

    Markers come before the call they speak of, so where something is missing between a call and the
    one before it on its thread, some of them may be. A copy tells its memory by its addresses.

    Args:
        host: `host_calls`.
        placed: Copies with `call_id, dst_address, src_address, copied_bytes`.
        accesses: The `accesses` table.

    Returns:
        `call_id, process_id, place, stream_id, is_launch`, by place.
    """
    told = placed.drop_nulls(["dst_address", "src_address", "copied_bytes"])["call_id"]
    is_vague = pl.col("address").is_null() | pl.col("size_bytes").is_null()
    vague = accesses.filter(is_vague)
    said = accesses.join(vague, on="call_id", how="anti")["call_id"].drop_nulls()
    thread = ["process_id", "thread_id"]
    is_lost = pl.col("kind") == "lost"
    counted, is_whole = host, pl.lit(value=True)
    if host.select(is_lost.any()).item():
        holes = is_lost.cum_sum().over("process_id").cast(pl.Int64)
        counted = host.with_columns(holes=holes).drop_nulls("call_id")
        # The calls of other threads may be the ones that are missing, which cannot be told.
        is_whole = pl.col("holes") == pl.col("holes").shift(1).over(thread).fill_null(0)
    is_copy = pl.col("kind") == "copy"
    is_known = (is_copy & pl.col("call_id").is_in(told.implode())) | (
        is_whole & pl.col("call_id").is_in(said.implode())
    )
    work = counted.filter(pl.col("kind").is_in(WORK) & ~is_known).drop_nulls("call_id")
    return work.select(
        *("call_id", "process_id", "place", "stream_id"),
        is_launch=pl.col("kind").is_in(["launch", "graph_launch"]),
    )


def with_done(vague: pl.DataFrame, ends: pl.Series) -> list[pl.DataFrame]:
    """Return when each piece of undeclared work, and all before it in its stream, are done.

    Args:
        vague: `undeclared`.
        ends: By place, when what was submitted there ended.

    Returns:
        Per process and stream, of the streams with the most such work, `process_id,
        other_stream_id, other_place, is_launch, done_ns` (null where no op was recorded), by place;
        one empty frame first.
    """
    busiest = vague["stream_id"].value_counts(sort=True).head(MOST_STREAMS)["stream_id"]
    some = vague.select(
        "process_id", "is_launch", other_stream_id="stream_id", other_place="place"
    ).filter(pl.col("other_stream_id").is_in(busiest.implode()))
    some = some.with_columns(done_ns=ends.gather(some["other_place"]))
    stream = ["other_stream_id"]
    by = stream if some["process_id"].n_unique() <= 1 else ["process_id", *stream]
    lanes = [some.clear(), *some.partition_by(by)]
    return [lane.with_columns(pl.col("done_ns").cum_max()) for lane in lanes]


def maybe_met(placed: pl.DataFrame, lanes: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return each copy with what was submitted last before and first after it, of each stream.

    Args:
        placed: Copies with `copy_row, process_id, place, stream_id, direction, start_ns`.
        lanes: `with_done`.

    Returns:
        `copy_row, copy_place, copy_stream_id, copy_mode, other_place, other_stream_id, other_mode,
        certainty` (possible) and `may_be_ordered`: but for kernels in flight when a copy writes to
        a device, nobody knows whether they meet, and so an order that nothing makes is none.
    """
    asking = _asking(placed)
    parts = [
        _last_and_first(_of(asking, lane["process_id"]), lane.drop("process_id")) for lane in lanes
    ]
    found = pl.concat(parts)
    to_device = placed.filter(pl.col("direction").cast(pl.String).str.ends_with("-to-device"))
    writes = pl.col("copy_row").is_in(to_device["copy_row"].implode())
    read, write = pl.lit("read", MODES), pl.lit("write", MODES)
    return found.select(
        *("copy_row", "copy_place", "copy_stream_id", "other_place", "other_stream_id"),
        copy_mode=pl.when(writes).then(write).otherwise(read),
        other_mode=pl.when(writes).then(read).otherwise(write),
        may_be_ordered=~(pl.col("in_flight") & writes).fill_null(value=False),
        certainty=pl.lit("possible", pl.Enum(["certain", "possible"])),
    )


def _of(asking: pl.DataFrame, processes: pl.Series) -> pl.DataFrame:
    """Return the copies of a lane's process, none of an empty lane's."""
    own = pl.col("process_id").eq_missing(pl.lit(processes.first()))
    return asking.clear() if processes.is_empty() else asking.filter(own)


def _last_and_first(asking: pl.DataFrame, lane: pl.DataFrame) -> pl.DataFrame:
    """Return the copies with the work of one stream next before and after, if it is `in_flight`."""
    parts = [
        # Other work of the copy's own call, a graph's launch, is in order inside the graph.
        asking.with_columns(beyond=pl.col("copy_place") + step).join_asof(
            lane,
            left_on="beyond",
            right_on="other_place",
            strategy=strategy,
            coalesce=False,
            check_sortedness=False,
        )
        for strategy, step in _BOTH_WAYS
    ]
    is_before = pl.col("other_place") < pl.col("copy_place")
    in_flight = is_before & pl.col("is_launch") & (pl.col("done_ns") > pl.col("start_ns"))
    return (
        pl.concat(parts)
        .drop_nulls("other_place")
        .select(
            *("copy_row", "copy_place", "copy_stream_id", "other_place", "other_stream_id"),
            in_flight=in_flight,
        )
    )


def missing_work(host: pl.DataFrame, placed: pl.DataFrame) -> pl.DataFrame:
    """Return each copy with the calls that are missing next before and next after it.

    Any of them may have used its memory. Once the host has waited for all that went before, no
    earlier one matters; what is missing later does not where the host has waited for the copy.

    Returns:
        `copy_row, copy_place, copy_stream_id, other_place, other_stream_id` (`NO_STREAM`).
    """
    holes = host.filter(kind="lost").select("process_id", other_place="place")
    parts = [
        nearest(
            _asking(placed),
            holes,
            left_on="copy_place",
            right_on="other_place",
            by=["process_id"],
            strategy=strategy,
        )
        for strategy, _ in _BOTH_WAYS
    ]
    return (
        pl.concat(parts)
        .drop_nulls("other_place")
        .select(
            *("copy_row", "copy_place", "copy_stream_id", "other_place"),
            other_stream_id=pl.lit(NO_STREAM, pl.Int32),
        )
    )


def _asking(placed: pl.DataFrame) -> pl.DataFrame:
    return placed.select(
        *("copy_row", "process_id", "start_ns"), copy_place="place", copy_stream_id="stream_id"
    ).sort("copy_place")
