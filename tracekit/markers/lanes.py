"""Which of the trace's streams a handle in markers is, and what markers say of it."""

import polars as pl

# One in ten may be wrong: a handle is used again after its stream was destroyed.
_LEAST_SHARE = 0.9
_HANDLE = ["process_id", "handle"]


def stream_votes(attached: pl.DataFrame, calls: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return `[range_id, process_id, handle, stream_id]`: where a marker's stream is known.

    It is that of the call the marker speaks of or, but for graphs, which may use several, of its
    op. The number in `streams.handle` is the profiler's own and proves nothing.

    Args:
        attached: Markers with `stream` and `call_id`.
        calls: `call_id`, `stream_id`.
        ops: `call_id`, `stream_id`, `graph_launch_id`.
    """
    speaking = attached.drop_nulls(["stream", "call_id"]).select(
        "range_id", "process_id", "call_id", handle="stream"
    )
    called = speaking["call_id"].unique().implode()
    of_call = calls.filter(pl.col("call_id").is_in(called)).select("call_id", of_call="stream_id")
    of_op = (
        ops.filter(pl.col("graph_launch_id").is_null() & pl.col("call_id").is_in(called))
        .group_by("call_id")
        .agg(of_op=pl.when(pl.col("stream_id").n_unique() == 1).then(pl.col("stream_id").first()))
    )
    return (
        speaking.join(of_call, on="call_id", how="left", maintain_order="left")
        .join(of_op, on="call_id", how="left", maintain_order="left")
        .select("range_id", *_HANDLE, stream_id=pl.coalesce("of_call", "of_op"))
        .drop_nulls("stream_id")
    )


def stream_ids(votes: pl.DataFrame) -> pl.DataFrame:
    """Return `[process_id, handle, stream_id]` of the handles that are one stream's alone."""
    counts = votes.group_by(*_HANDLE, "stream_id").agg(votes=pl.len())
    share_of_handle = pl.col("votes") / pl.col("votes").sum().over(_HANDLE)
    share_of_stream = pl.col("votes") / pl.col("votes").sum().over("process_id", "stream_id")
    is_clear = (share_of_handle >= _LEAST_SHARE) & (share_of_stream >= _LEAST_SHARE)
    return counts.filter(is_clear).select(*_HANDLE, "stream_id").sort("process_id", "stream_id")


def described_streams(
    streams: pl.DataFrame, said: pl.DataFrame, known: pl.DataFrame
) -> tuple[pl.DataFrame, int]:
    """Return `streams` with flags and names where they were null, and how many flags disagree.

    A handle of which different things were said is left out, as is a stream of two handles.

    Args:
        streams: The table.
        said: Of `statements`.
        known: Of `stream_ids`.
    """
    stated = said.filter(pl.col("verb") == "stream").select(
        "process_id", "flags", "name", handle="subject"
    )
    null_stream = known.filter(pl.col("handle") == "0x0").select(
        "process_id", "handle", flags=pl.lit("null"), name=pl.lit(None, pl.String)
    )
    of_stream = (
        pl.concat([stated, null_stream], how="diagonal")
        .join(known, on=_HANDLE)
        .group_by("stream_id")
        .agg(_only("flags"), _only("name"))
    )
    both = streams.join(
        of_stream, on="stream_id", how="left", suffix="_said", maintain_order="left"
    )
    disagree = both["flags"].cast(pl.String) != both["flags_said"]
    flags = pl.coalesce("flags", pl.col("flags_said").cast(streams.schema["flags"]))
    return both.with_columns(flags=flags, name=pl.coalesce("name", "name_said")).select(
        streams.columns
    ), int(disagree.sum())


def _only(column: str) -> pl.Expr:
    values = pl.col(column).drop_nulls().unique()
    return pl.when(values.len() == 1).then(values.first()).alias(column)
