"""What each op waited for last before it could start: one link back per op.

An op starts when the last of these is done: the op before it in its stream, the work that an event
wait of its stream waits for, and its submission by the host. Behind a submission the link goes back
on the host's thread to the last blocking call that device work released, and on to that work.
"""

import polars as pl

from tracekit.analyses.critical_path.behind import (
    NO_LINK,
    Released,
    behind_host,
    behind_wait,
    may_hide_wait,
)
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


BOUND_BY = pl.Enum(["order", "wait", "call"])
# In place of the row that a link leads to: the host was what held the op.
TO_HOST = -2


def linked(submitted: pl.DataFrame, calls: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """Return the ops by rank, each with what on the device it may have waited for.

    A lane is a stream, or a queue where the format has no streams; a graph's ops are in the lane it
    was launched on, and an op with neither waits for none by order.

    Args:
        submitted: `idle_time.gaps.submitted_ops`.
        calls: The `calls` table.
        waits: The `waits` table.

    Returns:
        `lanes.nodes_of`, ordered by start, end and id; `order_at` and `order_ns`, `is_within`, of
        `lanes.in_order`; `wait_at` and `wait_ns` of `behind.behind_wait`. Rows are those of the
        frame, and lead back.
    """
    nodes = nodes_of(submitted, calls)
    return pl.concat([nodes, in_order(nodes), behind_wait(nodes, calls, waits)], how="horizontal")


def links_back(nodes: pl.DataFrame) -> pl.Series:
    """Return the row that each op's link leads to, or `NO_LINK`, or `TO_HOST`."""
    to_host = pl.lit(TO_HOST, pl.Int64)
    return (
        nodes.lazy()
        .with_columns(*_submission())
        .with_columns(_binding())
        .select(_of_binding("order_at", "wait_at", to_host).fill_null(NO_LINK).alias("link"))
        .collect()
        .to_series()
    )


def explained(
    rows: pl.DataFrame,
    nodes: pl.DataFrame,
    calls: pl.DataFrame,
    waits: pl.DataFrame,
    released: Released,
) -> pl.DataFrame:
    """Return ops with what their links are.

    Args:
        rows: Rows of `nodes` with `blocker`, the row of `released.calls` that their link leads to,
            null where it leads to none.
        nodes: `linked`.
        calls: The `calls` table.
        waits: The `waits` table.
        released: `behind.released_calls`.

    Returns:
        `rows` with `until_ns` (from where back the op that the link leads to is on the path),
        `gap_kind` from `gap_ns` to the op's start, `launch_name`, and for a submission `host_ns`
        (when the host had done it), `blocking_call_id` and `blocked_ns` (when that call returned).
    """
    rows = rows.with_columns(*_submission()).with_columns(_binding())
    rows = rows.hstack(behind_host(rows, released))
    rows = rows.with_columns(
        _of_binding("order_ns", "wait_ns", "host_ns").alias("gap_ns"),
        _of_binding("order_ns", "wait_ns", "host_until_ns").alias("until_ns"),
    )
    names = rows_of(rows["call_id"], calls.select("call_id", launch_name="name"), "call_id")
    return rows.hstack([*names, may_hide_wait(rows, nodes, calls, waits)]).with_columns(
        _gap_kind().alias("gap_kind"), host_ns=pl.when(pl.col("bound_by") == "call").then("host_ns")
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

    def bound(name: str) -> pl.Expr:
        return pl.lit(name, BOUND_BY)

    return (
        pl.when(pl.col("order_ns") == last)
        .then(bound("order"))
        .when(pl.col("wait_ns") == last)
        .then(bound("wait"))
        .when(pl.col("call_ns") == last)
        .then(bound("call"))
        .alias("bound_by")
    )


def _of_binding(order: str, wait: str, call: str | pl.Expr) -> pl.Expr:
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
