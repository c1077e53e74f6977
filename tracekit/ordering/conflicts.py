"""Pairs of a copy and other work that use the same memory, at least one of them writing."""

import polars as pl

from tracekit.intervals.matching import nearest

MODES = pl.Enum(["read", "write"])
_SIDES = (("dst_address", "write"), ("src_address", "read"))
# Copied ranges, and pairs of a copy and a lane that it meets, that are looked at together.
_RANGES_AT_ONCE, _PAIRS_AT_ONCE = 2_000, 500_000
_RANGE = ["process_id", "address", "size_bytes"]
USES = pl.Schema(
    {
        "place": pl.Int32(),
        "copy_row": pl.Int64(),
        "process_id": pl.Int32(),
        "stream_id": pl.Int32(),
        "address": pl.UInt64(),
        "size_bytes": pl.Int64(),
        "mode": MODES,
        "buffer": pl.String(),
        "may_be_staged": pl.Boolean(),
    }
)


def memory_uses(host: pl.DataFrame, copies: pl.DataFrame, accesses: pl.DataFrame) -> pl.DataFrame:
    """Return which memory each call's work reads and writes, as far as the trace tells: `USES`.

    A copy says so itself, by its addresses; where it has none, and for all else, it is what was
    declared. Of a copy inside a graph its op tells. Pageable memory that an asynchronous copy sends
    to a device is read by the host while it calls, which is in order with all that it calls, so it
    is left out; where the trace does not say that it is pageable, it `may_be_staged`.

    Args:
        host: `host_calls`.
        copies: With `copy_row`, the number of each copy.
        accesses: The `accesses` table.
    """
    sends = (pl.col("direction").cast(pl.String) == "host-to-device").fill_null(value=False)
    placed = host.select("call_id", "place", "process_id", "stream_id").drop_nulls("call_id")
    sides = [
        copies.select(
            "call_id",
            "copy_row",
            address=address,
            size_bytes="copied_bytes",
            mode=pl.lit(mode, MODES),
            may_be_staged=pl.lit(mode == "read") & sends & pl.col("is_pinned").is_null(),
            is_staged=pl.lit(mode == "read") & sends & ~pl.col("is_pinned").fill_null(value=True),
        ).drop_nulls(["address", "size_bytes"])
        for address, mode in _SIDES
    ]
    told = pl.concat(sides)
    silent = copies.join(told, on="copy_row", how="anti").select("call_id", "copy_row")
    declared = accesses.drop_nulls(["call_id", "address", "size_bytes"]).with_columns(
        pl.col("mode").cast(MODES)
    )
    own = told.join(host.filter(kind="copy").select("call_id"), on="call_id", how="semi")
    others = declared.join(own, on="call_id", how="anti").join(silent, on="call_id", how="left")
    parts = [
        told.filter(~pl.col("is_staged")).drop("is_staged"),
        others.select("call_id", "copy_row", "address", "size_bytes", "mode", "buffer"),
    ]
    found = pl.concat(parts, how="diagonal_relaxed").join(placed, on="call_id")
    return (
        found.with_columns(pl.col("may_be_staged").fill_null(value=False))
        .select(USES.names())
        .cast(USES)
        .filter(pl.col("size_bytes") > 0)
    )


def conflicts(uses: pl.DataFrame) -> pl.DataFrame:
    """Return, for each copy, the nearest work before and after it that it has to be ordered with.

    Work of one stream is in order, so of each stream and each kind of use the last before and the
    first after the copy stand for all others.

    Args:
        uses: `memory_uses`.

    Returns:
        `copy_row, copy_place, copy_stream_id, copy_mode, other_place, other_stream_id, other_mode,
        may_be_ordered` (it may have been staged), `buffer` (its name where one is known). Cost:
        sorts of the uses, and the ranges of memory that overlap a copy's, joined range by range,
        some at a time.
    """
    ranges = uses.group_by(_RANGE).agg(pl.col("buffer").drop_nulls().first())
    ranges = ranges.with_row_index("range").with_columns(
        end=pl.col("address") + pl.col("size_bytes").cast(pl.UInt64)
    )
    numbered = uses.drop("buffer").join(ranges.select(*_RANGE, "range"), on=_RANGE)
    mine = numbered.filter(pl.col("copy_row").is_not_null()).drop(_RANGE)
    copied = ranges.join(mine.select("range"), on="range", how="semi")
    lane = ["range", "stream_id", "mode", "may_be_staged"]
    lanes = numbered.select(lane).unique().rename({"range": "other_range"}).with_row_index("lane")
    theirs = numbered.rename({"range": "other_range"}).join(
        lanes, on=["other_range", *lane[1:]], nulls_equal=True
    )
    places = theirs.select("lane", other_place="place").sort("other_place")
    parts = [_met(mine.clear(), _meeting(copied.clear(), ranges, lanes), places)]
    for some in copied.iter_slices(_RANGES_AT_ONCE):
        meeting = _meeting(some, ranges, lanes)
        parts += [_met(batch, meeting, places) for batch in _batches(mine, meeting)]
    return pl.concat(parts).sort("copy_row", "other_place", maintain_order=True)


def _meeting(copied: pl.DataFrame, ranges: pl.DataFrame, lanes: pl.DataFrame) -> pl.DataFrame:
    """Return, per copied range, the lanes of the ranges that it shares a byte with."""
    return _overlapping(copied, ranges).join(lanes, on="other_range")


def _batches(mine: pl.DataFrame, meeting: pl.DataFrame) -> list[pl.DataFrame]:
    """Return the copies of some ranges in batches: how many lanes they meet bounds the memory."""
    counted = mine.join(meeting.group_by("range").agg(met=pl.len()), on="range")
    batch = (pl.col("met").cast(pl.Int64).cum_sum() // _PAIRS_AT_ONCE).alias("batch")
    return counted.with_columns(batch).drop("met").partition_by("batch", include_key=False)


def _met(mine: pl.DataFrame, meeting: pl.DataFrame, places: pl.DataFrame) -> pl.DataFrame:
    """Return what copies meet: of each stream and kind of use the nearest before and after."""
    asked = mine.join(meeting, on="range", suffix="_of_other").filter(
        (pl.col("mode") == "write") | (pl.col("mode_of_other") == "write")
    )
    met = ["copy_row", "mode", "may_be_staged", "stream_id_of_other"]
    met += ["mode_of_other", "may_be_staged_of_other"]
    sides = [
        _nearest_use(asked, places, step)
        .sort("other_place", descending=step < 0)
        .unique(met, keep="first", maintain_order=True)
        for step in (-1, 1)
    ]
    return pl.concat(sides).select(
        "copy_row",
        "other_place",
        "buffer",
        copy_place="place",
        copy_stream_id="stream_id",
        copy_mode="mode",
        may_be_ordered=pl.col("may_be_staged") | pl.col("may_be_staged_of_other"),
        other_stream_id="stream_id_of_other",
        other_mode="mode_of_other",
    )


def _overlapping(copied: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    """Return `range, other_range, buffer` of ranges of one process that share a byte.

    Process by process: polars joins on an equality first, and would make every pair of ranges
    before it looks at the addresses.
    """
    parts = [
        _sharing(part, ranges.filter(process_id=process))
        for (process,), part in copied.partition_by("process_id", as_dict=True).items()
    ]
    return pl.concat([_sharing(copied.clear(), ranges.clear()), *parts])


def _sharing(copied: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    others = ranges.select(
        other_range="range",
        other_address="address",
        other_end="end",
        other_buffer="buffer",
    )
    pairs = copied.join_where(
        others,
        pl.col("address") < pl.col("other_end"),
        pl.col("other_address") < pl.col("end"),
    )
    return pairs.select("range", "other_range", buffer=pl.coalesce("other_buffer", "buffer"))


def _nearest_use(asked: pl.DataFrame, places: pl.DataFrame, step: int) -> pl.DataFrame:
    """Return `asked` with `other_place`: the nearest before (-1) or after (+1) in the lane."""
    moved = asked.with_columns(beyond=pl.col("place") + step).sort("beyond")
    found = nearest(
        moved,
        places,
        left_on="beyond",
        right_on="other_place",
        by=["lane"],
        strategy="backward" if step < 0 else "forward",
    )
    return found.drop_nulls("other_place").drop("beyond")
