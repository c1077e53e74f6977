"""HIP and CUDA API names, normalised in one place: what a call does, and whether it blocks."""

import re

import numpy as np
import polars as pl

from tracekit.remembered import remembered
from tracekit.tables.activity import CALL_KINDS
from tracekit.tables.rows import rows_of

LAUNCH_KINDS = ("launch", "graph_launch")
# Calls that return when device work is done; copies may too, see `copy_blocks`.
BLOCKING_KINDS = ("event_sync", "stream_sync", "device_sync")

# What CUPTI calls its own rows about waits; such a row may be all there is of a call.
WAITS_ALONE = ("Event Sync", "Stream Sync", "Context Sync", "Stream Wait Event")

# First match wins. An unknown API that launches work is `other` here and loses nothing by it: ops
# find their call by correlation, never by its kind. Words with spaces are CUPTI's own, of rows
# about synchronisation.
_KINDS = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"GraphLaunch", "graph_launch"),
        (r"LaunchHostFunc|StreamAddCallback", "callback"),
        (r"Launch", "launch"),
        (r"Memcpy", "copy"),
        (r"Memset", "fill"),
        (r"EventRecord", "event_record"),
        (r"StreamWaitEvent|Stream Wait Event", "event_wait"),
        (r"EventSynchronize|Event Sync", "event_sync"),
        (r"(Event|Stream)Query", "event_query"),
        (r"StreamSynchronize|Stream Sync", "stream_sync"),
        (r"(Device|Ctx|Thread)Synchronize|Context Sync", "device_sync"),
        (r"StreamCreate", "stream_create"),
        (r"Free|MemRelease", "free"),
        (r"Malloc|MemAlloc|HostAlloc|MemCreate", "malloc"),
    )
)
_CAPTURE = r"StreamBeginCapture|StreamEndCapture"


def call_kind(name: str) -> str:
    """Return what an API call does, one of `CALL_KINDS` (`hipEventSynchronize` → `event_sync`)."""
    return next((kind for pattern, kind in _KINDS if pattern.search(name)), "other")


def call_kinds(names: pl.Series) -> pl.Series:
    """Return `call_kind` of each name, worked out once per distinct name."""
    distinct = names.cast(pl.String).unique().drop_nulls()
    kinds = {name: call_kind(name) for name in distinct}
    return names.cast(pl.String).replace_strict(
        kinds, default="other", return_dtype=pl.Enum(CALL_KINDS)
    )


def queued_before_recording(ops: pl.DataFrame, calls: pl.DataFrame) -> pl.Series:
    """Return whether each op was launched before its process's first recorded call.

    Correlation numbers grow with time, so such an op's is below the lowest of the calls; null where
    the op has no number or its process no call.

    Args:
        ops: `process_id`, `correlation_id`.
        calls: `process_id`, `correlation_id`.
    """
    recorded = calls.group_by("process_id").agg(pl.col("correlation_id").min())
    first = dict(recorded.iter_rows())
    lowest = pl.col("process_id").replace_strict(first, default=None, return_dtype=pl.Int64)
    return ops.select(pl.col("correlation_id") < lowest).to_series()


def leads_over_calls(ops: pl.DataFrame, calls: pl.DataFrame) -> pl.Series:
    """Return by how much each op starts before the call that launched it began.

    A lead above 0 cannot be: the clocks of host and device differ by at least that much. Null where
    the op's call was not recorded.

    Args:
        ops: `call_id`, `start_ns`.
        calls: `call_id` (ascending), `start_ns`.
    """
    called = rows_of(ops["call_id"], calls.select("call_id", "start_ns"), "call_id")["start_ns"]
    return (called - ops["start_ns"]).alias("lead_ns")


def stream_waits(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that made a stream wait for an event.

    A call made while its thread captures a graph makes no stream wait.

    Args:
        calls: `process_id`, `thread_id`, `name`, `kind`, `start_ns`, and whatever is to be kept.
    """
    asked = calls.filter(pl.col("kind") == "event_wait")
    return asked.filter(~is_captured(asked, calls))


def is_captured(asked: pl.DataFrame, calls: pl.DataFrame) -> pl.Series:
    """Return which calls were made between the begin and the end of their thread's capture.

    Args:
        asked: `process_id`, `thread_id`, `start_ns`, in any order.
        calls: The same of all calls, and `name`.
    """
    thread = ["process_id", "thread_id"]
    name = pl.col("name").cast(pl.String)
    # A look at each distinct name, not at each call's.
    capturing = calls.select("name").unique().filter(name.str.contains(_CAPTURE))
    if capturing.is_empty():
        return pl.repeat(value=False, n=asked.height, dtype=pl.Boolean, eager=True)
    edges = (
        calls.join(capturing, on="name", how="semi")
        .select(*thread, "start_ns", begins=name.str.contains("Begin"))
        .sort("start_ns")
    )
    placed = asked.select(*thread, "start_ns").with_row_index("row").sort("start_ns")
    placed = placed.join_asof(edges, on="start_ns", by=thread, check_sortedness=False)
    return placed.sort("row")["begins"].fill_null(value=False)


@remembered
def untold_waits(calls: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """Return the `stream_waits` of which the trace does not say what they wait for.

    That is not said where it knows neither the call that recorded the event nor when the wait was
    over.

    Args:
        calls: As `stream_waits`, and `call_id`.
        waits: `wait_call_id`, `record_call_id`, `pending_end_ns`.
    """
    is_told = pl.col("record_call_id").is_not_null() | pl.col("pending_end_ns").is_not_null()
    told = waits.filter(is_told).select(call_id="wait_call_id")
    return stream_waits(calls).join(told, on="call_id", how="anti", maintain_order="left")


def launches_without_ops(calls: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of which an op is missing: others before and after have theirs.

    A kernel launch always has an op, and so has a copy of CUDA; on HIP a copy may run as a kernel
    or on the host, and a fill of nothing has none. Nor has what was captured into a graph. What
    comes after the last call with an op may not have run before recording ended. Graph launches
    are not looked at.

    Args:
        calls: `call_id` (ascending), `process_id`, `thread_id`, `name`, `kind`, `start_ns`,
            `correlation_id`, and whatever is to be kept.
        ops: `process_id`, `call_id`, `correlation_id`.
    """
    of_cuda = pl.col("name").cast(pl.String).str.starts_with("cu")
    copying = calls.select("name").unique().filter(of_cuda)["name"]
    is_work = (pl.col("kind") == "launch") | (
        (pl.col("kind") == "copy") & pl.col("name").is_in(copying.implode())
    )
    called = ops["call_id"].drop_nulls()
    if called.is_empty():
        return calls.clear()
    has_op = _is_among(calls["call_id"], called)
    missing = calls.filter(is_work & ~has_op)
    if missing.is_empty():
        return missing
    # A call inside another shares its number; the op belongs to the outer one.
    number = ["process_id", "correlation_id"]
    missing = missing.join(ops, on=number, how="anti")
    reach = (
        calls.filter(has_op)
        .group_by("process_id")
        .agg(first_ns=pl.col("start_ns").min(), last_ns=pl.col("start_ns").max())
    )
    missing = missing.join(reach, on="process_id", maintain_order="left").filter(
        pl.col("start_ns").is_between("first_ns", "last_ns")
    )
    return missing.filter(~is_captured(missing, calls)).select(calls.columns)


def _is_among(ids: pl.Series, some: pl.Series) -> pl.Series:
    """Return which ids, ascending, are among some others: a look at a table, not a hash."""
    if ids.is_empty():
        return pl.Series([], dtype=pl.Boolean)
    first, last = int(ids[0]), int(ids[-1])
    seen = np.zeros(last - first + 1, dtype=bool)
    inside = some.filter(some.is_between(first, last))
    seen[inside.to_numpy() - first] = True
    return pl.Series(seen[ids.to_numpy() - first])


def copy_blocks(name: str, direction: str | None) -> bool | None:
    """Return whether a copy call returns only when the copy is done.

    An asynchronous copy from or to pageable memory may block too, and a copy within a device may
    return early; both are unknown (None) from the name alone.
    Source: HIP and CUDA runtime API, "API synchronization behavior".
    """
    if "Async" in name or direction == "device-to-device":
        return None
    return True
