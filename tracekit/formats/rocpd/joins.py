"""Between host and device: which call an op belongs to, and which stream a call names."""

from collections.abc import Sequence

import polars as pl

from tracekit.formats.rocpd.arguments import argument, handles
from tracekit.formats.rocpd.database import Capture
from tracekit.formats.rocpd.events import Texts
from tracekit.formats.rocpd.identity import Handles
from tracekit.formats.rocpd.row_index import RowIndex, looked_up

# Handles that HIP reserves: 0 and hipStreamLegacy are the null stream, hipStreamPerThread is one
# stream per thread, and the `_spt` variants of the API mean that one where they say 0.
_LEGACY, _PER_THREAD = 1, 2
# Copies and fills without a stream parameter are defined to use the null stream.
_OWN_STREAM = r"Async|WithStream|_spt"


def with_calls(
    ops: pl.DataFrame, calls: pl.DataFrame, hsa_parents: pl.Series | None
) -> pl.DataFrame:
    """Add `call_id` and `graph_launch_id` to ops: an op and its call share one stack id.

    Args:
        ops: Device ops with `correlation_id`.
        calls: Calls with `call_id` as the row number.
        hsa_parents: Per call the HIP call around an HSA call, so that an op always joins the call
            that the program made; null where the file has no HSA calls.
    """
    found = RowIndex(calls["correlation_id"]).rows(ops["correlation_id"])
    if hsa_parents is not None:
        found = pl.select(pl.coalesce(hsa_parents.gather(found), found)).to_series()
    launches = calls["kind"] == "graph_launch"
    launch_id = pl.lit(None, pl.Int64)
    if launches.any():
        launch_id = pl.when(launches.gather(found)).then("call_id")
    return ops.with_columns(found.cast(pl.Int64).alias("call_id")).with_columns(
        launch_id.alias("graph_launch_id")
    )


def hsa_parents(capture: Capture, texts: Texts, calls: pl.DataFrame) -> pl.Series | None:
    """Return per call the row of the HIP call around it, for HSA calls only."""
    inside = calls["origin"] == "hsa"
    if not (inside.any() and capture.has("rocpd_event", "category_id", "parent_stack_id")):
        return None
    categories = ", ".join(map(str, texts.ids_of(capture, "hsa")))
    where = f"category_id IN ({categories}) AND parent_stack_id <> 0"
    columns = ["id", "parent_stack_id"]
    parts = list(capture.slices("rocpd_event", columns, where))
    if not parts:
        return None
    nested = pl.concat(parts)
    parent_of = RowIndex(nested["id"])
    stacks = looked_up(parent_of, calls["event_id"], nested["parent_stack_id"])
    return RowIndex(calls["correlation_id"]).rows(stacks)


def with_streams(
    calls: pl.DataFrame, ops: pl.DataFrame, arguments: pl.DataFrame, streams: Handles
) -> pl.DataFrame:
    """Add `stream_id` to calls.

    A call prints its stream as a pointer, an op has the stream's number. A call with an op has the
    op's; from those the pointers are learned, in time, since a destroyed stream's pointer is used
    again. A graph's ops may be on several streams: its launch goes by its pointer first.

    Args:
        calls: Calls with `call_id` as the row number.
        ops: Ops with `call_id` and `stream_id`.
        arguments: Of `read_arguments`.
        streams: Our id of each stream.
    """
    if calls.is_empty():
        return calls.with_columns(stream_id=pl.lit(None, pl.Int32))
    null_stream = streams.id_of(0)
    of_op = _streams_of_ops(calls.height, ops)
    named = argument(arguments, "stream").with_columns(pointer=handles(pl.col("text")))
    of_pointer = _streams_of_pointers(calls, of_op, named, streams)
    graph = calls["kind"] == "graph_launch"
    implied = _implied_null_stream(calls, named["call_id"], null_stream)
    frame = pl.DataFrame({"op": of_op, "pointer": of_pointer, "graph": graph, "implied": implied})
    stream = (
        pl.when("graph")
        .then(pl.coalesce("pointer", "op"))
        .otherwise(pl.coalesce("op", "pointer", "implied"))
    )
    return calls.with_columns(frame.select(stream.alias("stream_id")))


def _streams_of_ops(count: int, ops: pl.DataFrame) -> pl.Series:
    known = ops.select("call_id", "stream_id").drop_nulls()
    streams = pl.repeat(None, count, dtype=pl.Int32, eager=True)
    return streams.scatter(known["call_id"], known["stream_id"])


def _streams_of_pointers(
    calls: pl.DataFrame, of_op: pl.Series, named: pl.DataFrame, known: Handles
) -> pl.Series:
    """Return per call the stream that its pointer means at that time."""
    streams = pl.repeat(None, calls.height, dtype=pl.Int32, eager=True)
    if named.is_empty():
        return streams
    rows = named["call_id"]
    uses = named.select("call_id", "pointer").with_columns(
        calls["process_id"].gather(rows),
        calls["start_ns"].gather(rows),
        calls["name"].gather(rows).cast(pl.String),
        calls["kind"].gather(rows),
        of_op.gather(rows).alias("stream"),
    )
    per_thread = (pl.col("pointer") == _PER_THREAD) | pl.col("name").str.ends_with("_spt")
    null = (pl.col("pointer") <= _LEGACY) & ~per_thread
    uses = uses.with_columns(null=null, unknowable=per_thread).sort("start_ns")
    pointed = uses.filter(~pl.col("null") & ~pl.col("unknowable"))
    mapped = _in_time(pointed).drop_nulls()
    nulls = uses.filter("null").select("call_id", stream=pl.lit(known.id_of(0), pl.Int32))
    told = [mapped, nulls]
    if not _has_unpointed(calls, of_op, uses, mapped, known.id_of(0)):
        told.append(_without_ops(pointed, mapped, known))
    found = pl.concat([part.drop_nulls() for part in told])
    return streams.scatter(found["call_id"], found["stream"])


def _has_unpointed(
    calls: pl.DataFrame,
    of_op: pl.Series,
    uses: pl.DataFrame,
    mapped: pl.DataFrame,
    null_stream: int,
) -> bool:
    """Return whether some stream has ops and no pointer, because arguments are missing.

    Any pointer of which no op tells may be that stream's then.
    """
    called = calls.filter(calls["kind"] != "graph_launch", of_op != null_stream)
    known = pl.concat([mapped["stream"], uses.filter("unknowable")["stream"].drop_nulls()])
    return bool((~of_op.gather(called["call_id"]).is_in(known.implode())).any())


def _without_ops(pointed: pl.DataFrame, mapped: pl.DataFrame, known: Handles) -> pl.DataFrame:
    """Give each pointer of which no op ever told the number a stream, with a handle below 0."""
    key = ["process_id", "pointer"]
    told = pointed.join(mapped, on="call_id", how="semi").select(key).unique()
    untold = pointed.drop("stream").filter(~pl.col("name").str.starts_with("hipStreamCreate"))
    untold = untold.join(told, on=key, how="anti", nulls_equal=True)
    pointers = untold.select(key).unique(maintain_order=True).drop_nulls("pointer")
    # Numbered on, whatever file the capture is of: the profiler's own numbers are 0 and above.
    numbers = [known.id_of(-place) for place in range(1, pointers.height + 1)]
    pointers = pointers.with_columns(stream=pl.Series(numbers, dtype=pl.Int32))
    return untold.join(pointers, on=key, nulls_equal=True).select("call_id", "stream")


def _in_time(uses: pl.DataFrame) -> pl.DataFrame:
    """Return `[call_id, stream]`: of the last use whose stream is known, else of the next one.

    Neither reaches across the destruction of the stream.
    """
    destroys = pl.col("name").str.starts_with("hipStreamDestroy")
    known = uses.filter(
        destroys | (pl.col("stream").is_not_null() & (pl.col("kind") != "graph_launch"))
    ).select("process_id", "pointer", "start_ns", pl.when(~destroys).then("stream").alias("stream"))
    by: Sequence[str] = ("process_id", "pointer")
    asked = uses.filter(~destroys).select("call_id", *by, "start_ns")
    last = asked.join_asof(known, on="start_ns", by=by, strategy="backward", check_sortedness=False)
    following = asked.join_asof(
        known, on="start_ns", by=by, strategy="forward", check_sortedness=False
    )
    return pl.DataFrame(
        {
            "call_id": last["call_id"],
            "stream": pl.select(pl.coalesce(last["stream"], following["stream"])).to_series(),
        }
    )


def _implied_null_stream(calls: pl.DataFrame, named: pl.Series, null_stream: int) -> pl.Series:
    streams = pl.repeat(None, calls.height, dtype=pl.Int32, eager=True)
    copies = calls.filter(pl.col("kind").is_in(["copy", "fill"])).select(
        "call_id", pl.col("name").cast(pl.String)
    )
    implied = copies.filter(
        ~pl.col("name").str.contains(_OWN_STREAM) & ~pl.col("call_id").is_in(named.implode())
    )
    nulls = pl.repeat(null_stream, implied.height, dtype=pl.Int32, eager=True)
    return streams.scatter(implied["call_id"], nulls)
