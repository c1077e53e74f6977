"""The null stream and the streams that block with it: which waits for which, and where.

Only the first piece of work after one of the other side waits: those behind it follow it. So there
are no more rows than pieces of work, however many streams there are.
Source: HIP and CUDA runtime API, "stream synchronization behavior".
"""

import polars as pl

from tracekit.ordering.sweep import Tie

_JOINS = pl.Schema(
    {
        "place": pl.Int32(),
        "actor": pl.Int32(),
        "source": pl.Int32(),
        "until": pl.Int32(),
        "tie": pl.Int8(),
    }
)


def fences(queued: pl.DataFrame, streams: pl.DataFrame) -> pl.DataFrame:
    """Return where the null stream waits for a blocking stream, or that for it.

    Args:
        queued: `place, stream` of all that was submitted, by place.
        streams: `stream, flags`. One with unknown flags may be a blocking one.

    Returns:
        `place, actor, source, until, tie`: from `place` on `actor` comes after what `source` was
        given up to `until`.
    """
    parts = [pl.DataFrame(schema=_JOINS)]
    for null in streams.filter(flags="null")["stream"]:
        met = _first_in_parts(queued, streams, queued.filter(stream=null)["place"], Tie.STREAM)
        met = met.with_columns(null=pl.lit(null, pl.Int32))
        after = met.filter(pl.col("part") > 0)
        before = met.drop_nulls("next_place")
        sides = [
            after.select("place", "tie", actor="stream", source="null"),
            before.select("tie", place="next_place", actor="null", source="stream"),
        ]
        parts += [_joins(side.with_columns(until=pl.col("place") - 1)) for side in sides]
    return pl.concat(parts)


def null_syncs(syncs: pl.DataFrame, queued: pl.DataFrame, streams: pl.DataFrame) -> pl.DataFrame:
    """Return which blocking streams, too, the host has waited for when it waited for a null stream.

    A stream that was given nothing since the thread waited last is not named again.

    Args:
        syncs: `place, thread, stream` of waits for null streams.
        queued: As of `fences`.
        streams: As of `fences`.

    Returns:
        As `fences`; `actor` is the thread.
    """
    parts = [pl.DataFrame(schema=_JOINS)]
    for (thread, _), some in syncs.partition_by(["thread", "stream"], as_dict=True).items():
        later = _first_in_parts(queued, streams, some["place"], Tie.HOST)
        # Up to the first: all, of which some may have been given work before recording began.
        first = _blocking(streams, Tie.HOST).with_columns(
            next_place=pl.lit(some["place"][0], pl.Int32)
        )
        both = pl.concat([first, later.filter(pl.col("part") > 0).select(first.columns)])
        both = both.drop_nulls("next_place").select("tie", place="next_place", source="stream")
        parts.append(_joins(both.with_columns(until="place", actor=pl.lit(thread, pl.Int32))))
    return pl.concat(parts)


def _blocking(streams: pl.DataFrame, tie: Tie) -> pl.DataFrame:
    blocks = pl.col("flags") == "blocking"
    rule = pl.when(blocks).then(pl.lit(int(tie))).otherwise(pl.lit(int(Tie.ASSUMED)))
    return streams.filter(blocks | pl.col("flags").is_null()).select("stream", tie=rule)


def _first_in_parts(
    queued: pl.DataFrame, streams: pl.DataFrame, edges: pl.Series, tie: Tie
) -> pl.DataFrame:
    """Return the first work of each blocking stream in each `part` between edges.

    With `next_place`, the edge at the end of the part; null after the last.
    """
    blocking = _blocking(streams, tie)
    mine = queued.filter(pl.col("stream").is_in(blocking["stream"].implode()))
    parted = mine.with_columns(part=edges.search_sorted(mine["place"]))
    first = parted.unique(["stream", "part"], keep="first").join(blocking, on="stream")
    places = edges.to_frame("next_place").with_row_index("part")
    return first.join(places, on="part", how="left")


def _joins(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(pl.col(name).cast(dtype) for name, dtype in _JOINS.items())
