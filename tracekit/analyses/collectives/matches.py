"""Which kernels of several ranks are one collective."""

import polars as pl

from tracekit.analyses.collectives.kernels import SORTS, collective_sorts, element_bytes

MATCHED_BY = ("sequence", "group-order", "name-order")
# Two ranks and more; one rank waits for nobody.
MIN_RANKS = 2
# No message is longer than a memory; a count beyond is damage.
MOST_ELEMENTS = 1 << 50

# What a collective is told apart by; the kernel and its lane only where no message says more.
KEY = [
    "matched_by",
    "collective",
    "name",
    "group",
    "dtype",
    "in_elements",
    "out_elements",
    "sequence",
    "lane",
]


def matched_ops(ops: pl.DataFrame, streams: pl.DataFrame, messages: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels that are collectives, each with the collective it is part of.

    A rank is a process on a device. Kernels with a recorded message belong together by group and
    sequence number, or without number by group, sort, type and size in their order; those without a
    message by name in their order, and by stream where a rank runs the name on several. Order
    counts only if every rank of the group (every rank that has the name) has equally many.

    Args:
        ops: The `ops` table.
        streams: `stream_id, handle`.
        messages: The `messages` table.

    Returns:
        `op_id, process_id, device_id, start_ns, end_ns`, the columns of `KEY`, `group_size`,
        `message_bytes`, `turn` (which of its key), `is_matched`. Kernels of one collective have key
        and turn in common.
    """
    kernels = _collectives(ops, streams, messages)
    rank = ["process_id", "device_id"]
    counted = kernels.sort("start_ns", "end_ns", "op_id").with_columns(
        turn=pl.int_range(pl.len()).over(*rank, *KEY),
        of_rank=pl.len().over(*rank, *KEY),
        rank=pl.struct(rank),
    )
    ranks = pl.col("rank").n_unique()
    of_group = pl.when(pl.col("group").is_not_null()).then(ranks.over("group"))
    have_it = ranks.over(KEY)
    agree = (pl.col("of_rank").n_unique().over(KEY) == 1) & (have_it == of_group.fill_null(have_it))
    return counted.with_columns(is_matched=agree & (have_it >= MIN_RANKS)).drop("of_rank", "rank")


def _collectives(ops: pl.DataFrame, streams: pl.DataFrame, messages: pl.DataFrame) -> pl.DataFrame:
    names = ops["name"].unique()
    named = pl.col("name").is_in(names.filter(collective_sorts(names).is_not_null()).implode())
    told = pl.col("op_id").is_in(messages["op_id"].implode())
    kernels = ops.filter(pl.col("kind") == "kernel", named.fill_null(value=False) | told)
    recorded = messages.drop("process_id", "communicator").unique("op_id", keep="first")
    found = (
        kernels.select(
            "op_id",
            "process_id",
            "device_id",
            "stream_id",
            "start_ns",
            "end_ns",
            pl.col("name").cast(pl.String),
            collective_sorts(kernels["name"]).alias("sort"),
        )
        .join(recorded, on="op_id", how="left")
        .join(streams.select("stream_id", "handle"), on="stream_id", how="left")
    )
    said = collective_sorts(found["collective"]).alias("said")
    return _keyed(found.with_columns(said))


def _keyed(found: pl.DataFrame) -> pl.DataFrame:
    has_message = pl.col("group").is_not_null()
    group = pl.concat_str("group", "group_ranks", separator=" ", ignore_nulls=True)
    matched_by = (
        pl.when(has_message & pl.col("sequence").is_not_null())
        .then(pl.lit("sequence"))
        .when(has_message)
        .then(pl.lit("group-order"))
        .otherwise(pl.lit("name-order"))
    )
    # A sequence number says enough, and the sizes may differ between ranks (all-to-all).
    by_order = has_message & pl.col("sequence").is_null()
    uses = pl.col("handle").n_unique().over("process_id", "device_id", "name")
    elements = pl.max_horizontal("in_elements", "out_elements")
    possible = elements.is_between(0, MOST_ELEMENTS)
    return found.select(
        "op_id",
        "process_id",
        "device_id",
        "start_ns",
        "end_ns",
        pl.when(by_order).then(pl.col("dtype", "in_elements", "out_elements")),
        "sequence",
        "group_size",
        matched_by=matched_by.cast(pl.Enum(MATCHED_BY)),
        collective=pl.coalesce("said", "sort", pl.lit("other", pl.Enum(SORTS))),
        name=pl.when(~has_message).then("name"),
        group=pl.when(has_message).then(group),
        lane=pl.when(~has_message & (uses > 1)).then("handle"),
        message_bytes=pl.when(possible).then(elements * element_bytes(pl.col("dtype"))),
    )
