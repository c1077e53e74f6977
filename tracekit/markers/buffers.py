"""Where buffers lie, who uses them, and which copies have a page-locked side."""

import polars as pl

_BUFFER = ["process_id", "subject"]
_MODES = {"r": "read", "w": "write"}
_HOST_SIDE = {"host-to-device": "src_address", "device-to-host": "dst_address"}


def accesses(said: pl.DataFrame, attached: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the rows of `accesses`, by call, and the replays of graphs that nothing was said of.

    A buffer is where the last statement about it, at or before the marker, says.

    Args:
        said: Of `statements`.
        attached: Markers with `call_id`.
    """
    speaking = attached.drop_nulls("call_id")
    columns = ["range_id", "process_id", "start_ns", "call_id", "subject", "mode"]
    uses = speaking.filter(pl.col("verb") == "use").select(columns)
    replays = speaking.filter(pl.col("verb") == "replay")
    declared = _declared(said)
    known = said.filter(pl.col("verb") == "graph").select("process_id", graph="subject").unique()
    untold = replays.join(
        known, left_on=_BUFFER, right_on=["process_id", "graph"], how="anti"
    ).height
    of_graphs = (
        replays.drop("mode")
        .rename({"subject": "graph"})
        .join(declared, on=["process_id", "graph"], maintain_order="left_right")
        .select(columns)
    )
    return _located(pl.concat([uses, of_graphs]), said), untold


def _declared(said: pl.DataFrame) -> pl.DataFrame:
    """Return `[process_id, graph, mode, subject]`: what all statements about a graph add up to."""
    each = (
        said.filter(pl.col("verb") == "graph")
        .select(
            "process_id",
            graph="subject",
            access=pl.col("declares").str.extract_all(r"[rw]:0x[0-9a-f]+"),
        )
        .explode("access", empty_as_null=False)
    )
    return each.select(
        "process_id",
        "graph",
        mode=pl.col("access").str.slice(0, 1),
        subject=pl.col("access").str.slice(2),
    ).unique(maintain_order=True)


def _located(uses: pl.DataFrame, said: pl.DataFrame) -> pl.DataFrame:
    stated = said.filter(pl.col("verb") == "buffer").select(
        *_BUFFER, "start_ns", "name", "addr", "size"
    )
    located = uses.sort("start_ns", maintain_order=True).join_asof(
        stated, on="start_ns", by=_BUFFER, check_sortedness=False
    )
    return (
        located.sort("call_id", "range_id", maintain_order=True)
        .select(
            "call_id",
            buffer=pl.coalesce("name", "subject"),
            address="addr",
            size_bytes="size",
            mode=pl.col("mode").replace_strict(_MODES, return_dtype=pl.String),
        )
        .unique(maintain_order=True)
    )


def pinned_copies(copies: pl.DataFrame, calls: pl.DataFrame, said: pl.DataFrame) -> pl.DataFrame:
    """Return `copies` with `is_pinned` where it was null and the host's side lies in a buffer.

    Of several buffers that hold the address, the one last stated before the call counts.

    Args:
        copies: The table.
        calls: `call_id`, `start_ns`.
        said: Of `statements`.
    """
    stated = said.filter((pl.col("verb") == "buffer") & pl.col("place").is_not_null())
    asked = _host_sides(copies.with_row_index("row"), calls)
    if stated.is_empty() or asked.is_empty():
        return copies
    lies = stated.select("process_id", "addr", "size").unique()
    # Distinct addresses by distinct buffers, not copies by statements.
    inside = _inside(asked.select("process_id", "address", "end").unique(), lies)
    latest = stated.select("process_id", "addr", "size", "start_ns", "place", said_ns="start_ns")
    found = (
        asked.join(inside, on=["process_id", "address", "end"])
        .sort("start_ns")
        .join_asof(latest, on="start_ns", by=["process_id", "addr", "size"], check_sortedness=False)
        .drop_nulls("said_ns")
        .sort("said_ns")
        .group_by("row")
        .agg(place=pl.col("place").last())
    )
    is_pinned = pl.col("place").replace_strict(
        {"pinned": True, "pageable": False}, default=None, return_dtype=pl.Boolean
    )
    return (
        copies.with_row_index("row")
        .join(found, on="row", how="left", maintain_order="left")
        .with_columns(is_pinned=pl.coalesce("is_pinned", is_pinned))
        .select(copies.columns)
    )


def _inside(asked: pl.DataFrame, lies: pl.DataFrame) -> pl.DataFrame:
    """Return `asked` with `addr, size` of each buffer of its process that holds it.

    Process by process: polars joins on an equality first, and would make every pair.
    """
    ends = lies.with_columns(end_of_buffer=pl.col("addr") + pl.col("size").cast(pl.UInt64))
    parts = [
        part.join_where(
            ends.filter(process_id=process).drop("process_id"),
            pl.col("address") >= pl.col("addr"),
            pl.col("end") <= pl.col("end_of_buffer"),
        ).select("process_id", "address", "end", "addr", "size")
        for (process,), part in asked.partition_by("process_id", as_dict=True).items()
    ]
    return pl.concat(parts)


def _host_sides(copies: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return `[row, process_id, address, end, start_ns]` of copies with `is_pinned` null."""
    address = pl.lit(None, pl.UInt64)
    for direction, column in _HOST_SIDE.items():
        address = pl.when(pl.col("direction") == direction).then(column).otherwise(address)
    return (
        copies.filter(pl.col("is_pinned").is_null())
        .select("row", "process_id", "call_id", "copied_bytes", address=address)
        .drop_nulls(["process_id", "address"])
        .join(calls.select("call_id", "start_ns"), on="call_id")
        .select(
            "row",
            "process_id",
            "address",
            "start_ns",
            end=pl.col("address") + pl.col("copied_bytes").fill_null(1).cast(pl.UInt64),
        )
    )
