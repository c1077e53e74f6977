"""What each op waited for last before it could start: one link back per op.

An op starts when the last of these is done: the op before it in its stream, the work that an event
wait of its stream waits for, and its submission by the host. Behind a submission the link goes back
on the host's thread to the last blocking call that device work released, and on to that work.
"""

import polars as pl

from tracekit.analyses.critical_path.behind import behind_host, behind_wait, may_hide_wait
from tracekit.analyses.critical_path.lanes import in_order, nodes_of
from tracekit.idle_time.pieces import HAND_OVER_LIMIT_NS
from tracekit.tables.rows import rows_of

SEGMENT_KINDS = (
    "kernel",
    "copy",
    "fill",
    "launch-latency",
    "dispatch",
    "hand-over",
    "blocking-call",
    "host-range",
    "host-other",
    "unknown",
)
SEGMENT = pl.Enum(SEGMENT_KINDS)

_START = pl.col("start_ns")


def linked(
    submitted: pl.DataFrame,
    ops: pl.DataFrame,
    calls: pl.DataFrame,
    waits: pl.DataFrame,
    blockers: pl.DataFrame,
) -> pl.DataFrame:
    """Return the ops, each with the link to what it waited for, ordered by chain and start.

    A lane is a stream, or a queue where the format has no streams; a graph's ops are in the lane it
    was launched on, and an op with neither is a lane of its own. Every link leads to an op of lower
    `rank`: one that started earlier, or as early and is before it by end and id. In a chain each
    op's link leads to the row before it; several ops may have waited for one, and one of them only
    is in its chain.

    Args:
        submitted: `idle_time.gaps.submitted_ops`.
        ops: `op_id, kind, name, queue_id, graph_launch_id`.
        calls: The `calls` table.
        waits: The `waits` table.
        blockers: `idle_time.blocking.blocking_calls`.

    Returns:
        The op: `op_id, rank, chain, process_id, device_id, call_id, call_start_ns, launch_name,
        thread_id, start_ns, end_ns, kind, name`. Its link: `pred` (row of the op it leads to; null
        where the evidence ends), `until_ns` (from where back that op is on the path), `gap_kind`
        from `gap_ns` to the op's start, and for a submission `host_ns` (when the host had done it),
        `blocking_call_id` and `blocked_ns` (when that call returned).
    """
    nodes = nodes_of(submitted, ops, calls)
    nodes = nodes.hstack(behind_wait(nodes, calls, waits)).hstack(in_order(nodes))
    nodes = nodes.with_columns(*_submission()).with_columns(_binding())
    nodes = nodes.hstack(behind_host(nodes, blockers))
    nodes = nodes.with_columns(
        _of_binding("order_ns", "wait_ns", "host_ns").alias("gap_ns"),
    )
    nodes = nodes.with_columns(may_hide_wait(nodes, calls, waits))
    names = rows_of(nodes["call_id"], calls.select("call_id", launch_name="name"), "call_id")
    links = nodes.hstack(names).select(
        "op_id",
        "rank",
        "process_id",
        "device_id",
        "call_id",
        "call_start_ns",
        "launch_name",
        "thread_id",
        "start_ns",
        "end_ns",
        "kind",
        "name",
        _of_binding("order_at", "wait_at", "host_at").alias("pred"),
        _of_binding("order_ns", "wait_ns", "host_until_ns").alias("until_ns"),
        "gap_ns",
        _gap_kind().alias("gap_kind"),
        "blocking_call_id",
        "blocked_ns",
        host_ns=pl.when(pl.col("bound_by") == "call").then("host_ns"),
    )
    return _chained(links)


def _chained(links: pl.DataFrame) -> pl.DataFrame:
    """Return links ordered by chain, numbered in `chain`; found by pointer jumping."""
    rows = pl.int_range(links.height, dtype=pl.Int64, eager=True)
    linked_rows = links["pred"].is_not_null().arg_true()
    heirs = pl.repeat(None, links.height, dtype=pl.Int64, eager=True)
    heirs = heirs.scatter(links["pred"].gather(linked_rows), rows.gather(linked_rows))
    follows = (heirs.gather(links["pred"]) == rows).fill_null(value=False)
    heads = pl.select(pl.when(follows).then(links["pred"]).otherwise(rows)).to_series()
    while not (further := heads.gather(heads)).equals(heads):
        heads = further
    by_chain = links.select("rank").with_columns(heads.alias("head"))
    order = by_chain.select(pl.arg_sort_by("head", "rank")).to_series()
    places = pl.zeros(links.height, dtype=pl.Int64, eager=True).scatter(order, rows)
    return links.select(pl.all().gather(order)).with_columns(
        heads.gather(order).rle_id().cast(pl.Int64).alias("chain"),
        pred=places.gather(links["pred"].gather(order)),
    )


def _submission() -> list[pl.Expr]:
    """When the host had submitted each op, as far as that can have held it.

    An op that starts before its call returns was submitted at some moment of the call: at its
    beginning for all that is known, so that the op before it, if that ended later, held it longer.
    """
    known = ~pl.col("is_within") & pl.col("call_start_ns").is_not_null()
    began = pl.min_horizontal("call_start_ns", "start_ns")
    in_time = pl.col("call_end_ns") <= _START
    return [
        pl.when(known & in_time).then("call_end_ns").when(known).then(began).alias("call_ns"),
        pl.when(known).then(pl.min_horizontal("call_end_ns", "start_ns")).alias("host_ns"),
        pl.when(known).then(began).alias("asked_ns"),
    ]


def _binding() -> pl.Expr:
    """What held each op last; of equals the stream, then the wait. Null: nothing is known."""
    last = pl.max_horizontal("order_ns", "wait_ns", "call_ns")
    return (
        pl.when(pl.col("order_ns") == last)
        .then(pl.lit("order"))
        .when(pl.col("wait_ns") == last)
        .then(pl.lit("wait"))
        .when(pl.col("call_ns") == last)
        .then(pl.lit("call"))
        .alias("bound_by")
    )


def _of_binding(order: str, wait: str, call: str) -> pl.Expr:
    by = pl.col("bound_by")
    return (
        pl.when(by == "order")
        .then(order)
        .when(by == "wait")
        .then(wait)
        .when(by == "call")
        .then(call)
    )


def _gap_kind() -> pl.Expr:
    """What the time between what an op waited for and the op is, if it is short enough to know."""
    by = pl.col("bound_by")
    is_short = (_START - pl.col("gap_ns") <= HAND_OVER_LIMIT_NS).fill_null(value=False)
    is_short &= pl.col("is_within") | ~pl.col("may_hide_wait")
    # Of an op whose submission is not known, the host may have been late with it.
    is_submitted = pl.col("call_start_ns").is_not_null() | pl.col("is_queued_before")
    in_order = (by == "order") & (pl.col("is_within") | is_submitted.fill_null(value=False))

    def kind(name: str) -> pl.Expr:
        return pl.lit(name, SEGMENT)

    return (
        pl.when(is_short & (by == "call"))
        .then(kind("launch-latency"))
        .when(is_short & (by == "wait"))
        .then(kind("hand-over"))
        .when(is_short & in_order)
        .then(kind("dispatch"))
        .otherwise(kind("unknown"))
    )
