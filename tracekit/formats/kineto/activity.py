"""Ops, calls and copies: what the device and the host did, joined by correlation number."""

import polars as pl

from tracekit.api_calls import call_kinds, copy_blocks
from tracekit.formats.kineto.sections import DEVICE_WORK, HOST_CALLS
from tracekit.tables.activity import COPY_DIRECTIONS, OP_KINDS

KEY = ["process_id", "correlation"]

# ROCm runs some copies and fills as kernels of its own, named after what they stand for.
_BLIT_KERNEL = r"^__amd_rocclr_(copy|fill)"
_DIRECTION_LETTERS = r"([hdpa])(?:ost|evice|eer|rray)?_?to_?([hdpa])"
_DIRECTIONS = {
    "hd": "host-to-device",
    "dh": "device-to-host",
    "dd": "device-to-device",
    "hh": "host-to-host",
    "pp": "peer-to-peer",
    "ha": "host-to-device",
    "ah": "device-to-host",
    "aa": "device-to-device",
    "ad": "device-to-device",
    "da": "device-to-device",
}
_MEMCPY_KINDS = dict(zip("0123", ("hh", "hd", "dh", "dd"), strict=True))


def calls_of(details: pl.DataFrame) -> pl.DataFrame:
    """Return host calls with `call_id` and `kind`, ordered by start, outer calls first.

    CUPTI records a call that waits twice, as a call and as synchronisation (`cuda_sync`). Where the
    call is not there, the other row stands for it, under its own name. It was made on the process's
    thread, unless there are several.
    """
    recorded = details.filter(pl.col("section").is_in(HOST_CALLS))
    calls = (
        pl.concat([recorded, _waits_alone(details, recorded)])
        .lazy()
        .sort("start_ns", pl.col("end_ns").neg(), maintain_order=True)
        .with_row_index("call_id")
        .with_columns(
            pl.col("call_id").cast(pl.Int64), pl.col("correlation").pipe(known_correlation)
        )
        .rename({"kind": "copy_kind"})
        .collect()
    )
    return calls.with_columns(call_kinds(calls["name"]).alias("kind"))


def _waits_alone(details: pl.DataFrame, recorded: pl.DataFrame) -> pl.DataFrame:
    """Return the synchronisation rows of calls that are not there and came after the first."""
    only = pl.when(pl.col("tid").n_unique() == 1).then(pl.col("tid").first())
    first = recorded.group_by("process_id").agg(first=pl.col("correlation").min(), thread=only)
    return (
        details.filter(pl.col("section") == "sync")
        .join(recorded, on=KEY, how="anti")
        .join(first, on="process_id", maintain_order="left")
        .filter(pl.col("correlation") > pl.col("first"))
        .with_columns(tid="thread")
        .select(details.columns)
    )


def known_correlation(correlation: pl.Expr) -> pl.Expr:
    """Return the correlation, null for 0 and −1, which stand for none."""
    return pl.when(correlation > 0).then(correlation)


def one_call_each(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the one call behind each correlation: the runtime's before the driver's, the outer.

    A runtime call and the driver call inside it share a number, and so do two nested runtime calls.
    """
    return (
        calls.select(*KEY, "call_id", "section", "kind", "start_ns", "end_ns")
        .filter(pl.col("correlation").is_not_null())
        .sort(
            pl.col("section") == "driver", "start_ns", pl.col("end_ns").neg(), maintain_order=True
        )
        .unique(KEY, keep="first", maintain_order=True)
    )


def ops_of(details: pl.DataFrame, behind: pl.DataFrame) -> pl.DataFrame:
    """Return device work with `op_id`, `kind` and the call behind it, ordered by start.

    Args:
        details: Rows with process, device, stream and queue ids.
        behind: One call per correlation (`one_call_each`).

    Whether a row is device work is decided by its category, and the call is found by correlation
    alone: an unknown launch API loses nothing.
    """
    blit = pl.col("name").cast(pl.String).str.extract(_BLIT_KERNEL)
    kind = pl.coalesce(blit, pl.col("section").cast(pl.String)).cast(pl.Enum(OP_KINDS))
    call = behind.select(*KEY, "call_id", call_kind="kind", call_start_ns="start_ns")
    return (
        details.lazy()
        .filter(pl.col("section").is_in(DEVICE_WORK))
        .sort("start_ns", "end_ns", maintain_order=True)
        .with_row_index("op_id")
        .rename({"kind": "copy_kind"})
        .with_columns(
            pl.col("op_id").cast(pl.Int64), pl.col("correlation").pipe(known_correlation), kind=kind
        )
        .join(call.lazy(), on=KEY, how="left", maintain_order="left")
        .with_columns(
            graph_launch_id=pl.when(pl.col("call_kind") == "graph_launch").then("call_id")
        )
        .collect()
    )


def with_streams(calls: pl.DataFrame, ops: pl.DataFrame, synced: pl.DataFrame) -> pl.DataFrame:
    """Return calls with `stream_id` and `event_key`, as far as other rows tell.

    Sources: the synchronisation row of the same correlation; a wait that names the record call;
    and the one stream on which a call's ops ran (a graph's may run on several, so not for it).
    """
    own = synced.select(*KEY, "stream_id", event_key=pl.coalesce("wait_on_event", "event_id"))
    of_record = synced.select(
        "process_id",
        correlation="record_correlation",
        stream_id="recording_stream_id",
        event_key="wait_on_event",
    )
    ran_on = (
        ops.filter(pl.col("graph_launch_id").is_null())
        .group_by(KEY)
        .agg(pl.col("stream_id").first(), streams=pl.col("stream_id").n_unique())
        .filter(pl.col("streams") == 1)
        .select(*KEY, "stream_id", event_key=pl.lit(None, pl.Int64))
    )
    known = (
        pl.concat([own, of_record, ran_on])
        .filter(pl.col("correlation") > 0)
        .group_by(KEY, maintain_order=True)
        .agg(pl.col("stream_id", "event_key").drop_nulls().first())
        .with_columns(event_key=pl.when(pl.col("event_key") >= 0).then("event_key"))
    )
    return calls.drop("stream_id").join(known, on=KEY, how="left", maintain_order="left")


def copies_of(calls: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return one row per copy call, with its op if there is one, and per copy op without one.

    The direction is what the call asked for: roctracer labels a copy between pinned host memory and
    the device DtoD. Without that (CUDA, `hipMemcpyDefault`) it is what the op says.
    """
    done = ops.filter(pl.col("kind") == "copy").select(
        "op_id",
        "call_id",
        op_process_id="process_id",
        op_stream_id="stream_id",
        op_bytes="bytes",
        op_direction=_direction(pl.coalesce("copy_kind", pl.col("name").cast(pl.String))),
        is_pinned=_is_pinned(pl.col("name").cast(pl.String)),
    )
    asked = calls.filter(pl.col("kind") == "copy").select(
        "call_id",
        "process_id",
        "stream_id",
        pl.col("name").cast(pl.String),
        "bytes",
        dst_address=_address("dst"),
        src_address=_address("src"),
        direction=pl.col("copy_kind")
        .replace_strict(_MEMCPY_KINDS, default=None)
        .replace_strict(_DIRECTIONS, default=None, return_dtype=pl.String),
    )
    first = done.unique("call_id", keep="first", maintain_order=True)
    uncalled = done.join(asked, on="call_id", how="anti")
    rows = pl.concat(
        [asked.join(first, on="call_id", how="left", maintain_order="left"), uncalled],
        how="diagonal",
    ).select(
        "call_id",
        "op_id",
        pl.coalesce("process_id", "op_process_id").alias("process_id"),
        "dst_address",
        "src_address",
        "name",
        "is_pinned",
        copied_bytes=pl.coalesce("bytes", "op_bytes"),
        direction=pl.coalesce("direction", "op_direction").cast(pl.Enum(COPY_DIRECTIONS)),
        stream_id=pl.coalesce("stream_id", "op_stream_id"),
    )
    return rows.join(_blocking(rows), on=["name", "direction"], how="left", nulls_equal=True).drop(
        "name"
    )


def _blocking(copies: pl.DataFrame) -> pl.DataFrame:
    distinct = copies.select("name", "direction").unique()
    blocks = [
        None if name is None else copy_blocks(name, direction)
        for name, direction in distinct.iter_rows()
    ]
    return distinct.with_columns(is_blocking=pl.Series(blocks, dtype=pl.Boolean))


def _direction(text: pl.Expr) -> pl.Expr:
    ends = text.str.to_lowercase().str.extract_groups(_DIRECTION_LETTERS)
    letters = pl.concat_str(ends.struct[0], ends.struct[1])
    return letters.replace_strict(_DIRECTIONS, default=None, return_dtype=pl.String)


def _is_pinned(name: pl.Expr) -> pl.Expr:
    return (
        pl.when(name.str.contains("Pinned", literal=True))
        .then(pl.lit(value=True))
        .when(name.str.contains("Pageable", literal=True))
        .then(pl.lit(value=False))
    )


def _address(name: str) -> pl.Expr:
    text = pl.col(name)
    return (
        pl.when(text.str.starts_with("0x"))
        .then(text.str.strip_prefix("0x").str.to_integer(base=16, dtype=pl.UInt64, strict=False))
        .otherwise(text.cast(pl.UInt64, strict=False))
    )
