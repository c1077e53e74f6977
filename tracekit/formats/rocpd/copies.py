"""Copies as the program asked for them, whether or not a device op was recorded."""

import polars as pl

from tracekit.api_calls import copy_blocks
from tracekit.formats.rocpd.arguments import argument, handles
from tracekit.formats.rocpd.ops import DIRECTIONS

_KIND_NUMBERS = {"0": "HostToHost", "1": "HostToDevice", "2": "DeviceToHost", "3": "DeviceToDevice"}
# By the `kind` argument where there is one, else by the call's own name. `Default` says nothing.
_DIRECTIONS = (
    (r"HostToDevice|HtoD", "host-to-device"),
    (r"DeviceToHost|DtoH", "device-to-host"),
    (r"DeviceToDevice|DtoD", "device-to-device"),
    (r"HostToHost", "host-to-host"),
    (r"Peer", "peer-to-peer"),
)
_ADDRESSES = ("dst_address", "src_address")


def copies_frame(
    calls: pl.DataFrame, ops: pl.DataFrame, memory_copies: pl.DataFrame, arguments: pl.DataFrame
) -> pl.DataFrame:
    """Return the `copies` table.

    One row per copy call, with the first op that carries it out, and one per op of
    `rocpd_memory_copy` that no copy call asked for.

    Args:
        calls: Calls with `stream_id`.
        ops: Ops with `call_id`; only those of kind copy are used.
        memory_copies: Of `DeviceRows`.
        arguments: Of `read_arguments`.
    """
    copy_ops = ops.filter(pl.col("kind") == "copy").select(
        "op_id", "call_id", "process_id", "stream_id"
    )
    requested = calls.filter(pl.col("kind") == "copy").select(
        "call_id", "process_id", "stream_id", pl.col("name").cast(pl.String)
    )
    sizes = memory_copies.select("op_id", *_ADDRESSES, "copied_bytes", "direction")
    carried_out = (
        copy_ops.join(sizes, on="op_id", how="left", maintain_order="left")
        .drop_nulls("call_id")
        .group_by("call_id", maintain_order=True)
        # The runtime may carry out one copy in pieces; it starts where its first piece starts.
        .agg(
            pl.col("op_id", *_ADDRESSES, "direction").first(),
            pl.when(pl.col("copied_bytes").is_not_null().all()).then(pl.sum("copied_bytes")),
        )
    )
    asked = (
        _with_arguments(requested, arguments)
        .join(carried_out, on="call_id", how="left", suffix="_of_op", maintain_order="left")
        .with_columns(_or_of_op(name) for name in (*_ADDRESSES, "copied_bytes", "direction"))
        .select(
            *("call_id", "op_id", "process_id", "stream_id", "name"),
            *(*_ADDRESSES, "copied_bytes", "direction"),
        )
    )
    unasked = copy_ops.join(sizes, on="op_id", maintain_order="left").join(
        requested, on="call_id", how="anti", maintain_order="left"
    )
    return pl.concat([_with_blocking(asked), unasked], how="diagonal")


def _with_arguments(copies: pl.DataFrame, arguments: pl.DataFrame) -> pl.DataFrame:
    columns = {"dst": "dst_address", "src": "src_address", "size": "size", "kind": "kind_text"}
    columns |= {"width": "width", "height": "height"}
    for role, name in columns.items():
        texts = argument(arguments, role).rename({"text": name})
        copies = copies.join(texts, on="call_id", how="left", maintain_order="left")
    area = handles(pl.col("width")) * handles(pl.col("height"))
    said = pl.coalesce(pl.col("kind_text").replace(_KIND_NUMBERS), "name")
    direction = pl.lit(None, pl.String)
    for pattern, value in reversed(_DIRECTIONS):
        direction = pl.when(said.str.contains(pattern)).then(pl.lit(value)).otherwise(direction)
    return copies.with_columns(
        *(handles(pl.col(name)).alias(name) for name in _ADDRESSES),
        copied_bytes=pl.coalesce(handles(pl.col("size")), area).cast(pl.Int64, strict=False),
        direction=direction.cast(DIRECTIONS),
    )


def _or_of_op(name: str) -> pl.Expr:
    return pl.coalesce(name, f"{name}_of_op").alias(name)


def _with_blocking(copies: pl.DataFrame) -> pl.DataFrame:
    pairs = copies.select("name", pl.col("direction").cast(pl.String)).unique()
    blocking = [copy_blocks(name or "", direction) for name, direction in pairs.iter_rows()]
    pairs = pairs.with_columns(
        pl.col("direction").cast(DIRECTIONS), is_blocking=pl.Series(blocking, dtype=pl.Boolean)
    )
    return copies.join(
        pairs, on=["name", "direction"], how="left", nulls_equal=True, maintain_order="left"
    ).drop("name")
