"""Every gap cut into pieces with one cause each: the ledger before it is summed up."""

from collections.abc import Iterator, Sequence

import polars as pl

from tracekit.idle_time.blocking import blocking_calls, gap_owners
from tracekit.idle_time.gaps import device_gaps, outside, submitted_ops
from tracekit.idle_time.held import awaited_ops, maybe_waiting
from tracekit.idle_time.under import range_steps, silences
from tracekit.idle_time.unseen import Unseen, unseen
from tracekit.intervals import clip, intersect, subtract
from tracekit.tables.rows import rows_of

CAUSES = (
    "queue-wait",
    "dispatch",
    "launch-latency",
    "host-blocked",
    "host-late",
    "starved",
    "edge",
    "unknown",
)
PARTS = ("pending", "hand-over", "blocked", "wake-up", "exposed", "host", "launch")
CAUSE = pl.Enum(CAUSES)
PART = pl.Enum(PARTS)
PIECE_SCHEMA = pl.Schema(
    {
        "device_id": pl.Int32(),
        "op_id": pl.Int64(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "cause": CAUSE,
        "part": PART,
        "owner_call_id": pl.Int64(),
        "range": pl.String(),
    }
)
_HOST_PARTS = ("exposed", "host", "launch")

# From the end of the awaited work to the start of the op behind the wait takes microseconds; what
# is longer has another reason than the wait.
HAND_OVER_LIMIT_NS = 100_000
_THREAD = ["process_id", "thread_id"]

# Ops are looked at this many at a time, so that memory is bounded however many gaps there are.
_OPS_AT_ONCE = 1_000_000


def idle_pieces(
    ops: pl.DataFrame,
    calls: pl.DataFrame,
    copies: pl.DataFrame,
    waits: pl.DataFrame,
    marks: pl.DataFrame,
    ranges: pl.DataFrame,
    windows: pl.DataFrame,
) -> Iterator[pl.DataFrame]:
    """Yield the idle time of each device, every nanosecond in exactly one row.

    All of a gap in which an op may have run that is missing is `unknown`.

    Yields:
        Frames of `PIECE_SCHEMA`, disjoint per device, each of whole gaps. `op_id` is the op that
        ended the gap (null at the edges of a window), `part` the stage within the cause,
        `owner_call_id` the blocking call behind a `host-blocked` piece, `range` what the host was
        doing. The lengths add up to window − busy.
    """
    known = windows.filter(pl.col("device_id").is_not_null())
    submitted = submitted_ops(ops, calls)
    awaited = awaited_ops(submitted, calls, waits)
    missing = unseen(ops, calls, marks, ranges)
    untold = maybe_waiting(submitted, calls, waits, missing.waits)
    blockers = blocking_calls(ops, calls, copies)
    owners = gap_owners(submitted, calls, blockers, missing)
    threads = calls.select("call_id", "thread_id")
    steps, silence = range_steps(ranges), silences(calls, ranges)
    yield _conform([outside(submitted, known).with_columns(cause=pl.lit("edge", CAUSE))])
    for some in submitted.iter_slices(_OPS_AT_ONCE):
        all_gaps = device_gaps(some)
        may_be_busy = missing.may_fill(all_gaps)
        gaps = all_gaps.filter(~may_be_busy)
        has_call = pl.col("call_start_ns").is_not_null() & ~pl.col("is_within_graph")
        is_behind = pl.col("call_end_ns") > pl.col("start_ns")
        called = gaps.filter(has_call)
        behind = called.filter(is_behind)
        behind = behind.hstack(rows_of(behind["call_id"], threads, "call_id")).hstack(
            rows_of(behind["op_id"], owners, "op_id")
        )
        parts = [
            all_gaps.filter(may_be_busy).with_columns(cause=pl.lit("unknown", CAUSE)),
            _without_host(gaps.filter(~has_call)),
            *_submitted_in_time(called, awaited, untold),
            *_host_behind(behind, steps, silence),
        ]
        yield clip(_conform(parts), known, ["device_id"])


def blocked_pieces(
    submitted: pl.DataFrame,
    calls: pl.DataFrame,
    ranges: pl.DataFrame,
    owners: pl.DataFrame,
    windows: pl.DataFrame,
    missing: Unseen,
) -> pl.DataFrame:
    """Return the `host-blocked` pieces of `idle_pieces`, without what the host was doing.

    Only gaps that have an owner are looked at, so that this costs little beside finding the owners.

    Args:
        submitted: `gaps.submitted_ops`.
        calls: The `calls` table.
        ranges: The `ranges` table, for the time in which a thread had nothing to do.
        owners: `blocking.gap_owners`.
        windows: The `windows` table.
        missing: What is known to be missing.

    Returns:
        `PIECE_SCHEMA`, `range` null.
    """
    known = windows.filter(pl.col("device_id").is_not_null())
    owned = device_gaps(submitted.filter(pl.col("op_id").is_in(owners["op_id"].implode())))
    owned = owned.filter(~missing.may_fill(owned))
    threads = calls.select("call_id", "thread_id")
    behind = owned.hstack(rows_of(owned["call_id"], threads, "call_id")).hstack(
        rows_of(owned["op_id"], owners, "op_id")
    )
    pieces = _conform(_host_behind(behind, range_steps(ranges.clear()), silences(calls, ranges)))
    return clip(pieces.filter(pl.col("cause") == "host-blocked"), known, ["device_id"])


def _conform(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(
        [PIECE_SCHEMA.to_frame()]
        + [part.select(name for name in PIECE_SCHEMA if name in part.columns) for part in parts],
        how="diagonal",
    )


def _without_host(gaps: pl.DataFrame) -> pl.DataFrame:
    """Gaps that need no look at the host: inside a graph launch, or without a recorded call."""
    cause = (
        pl.when("is_within_graph")
        .then(pl.lit("dispatch", CAUSE))
        .when("is_queued_before")
        .then(pl.lit("edge", CAUSE))
        .otherwise(pl.lit("unknown", CAUSE))
    )
    return gaps.select("device_id", "op_id", "start_ns", "end_ns", cause=cause)


def _submitted_in_time(
    gaps: pl.DataFrame, awaited: pl.DataFrame, untold: pl.Series
) -> list[pl.DataFrame]:
    """The time of each gap after the next op's call had returned: held by a wait, or just late.

    It was held if a wait stood before it in its stream and what the wait was for ended no earlier
    than everything else on the device. `pending` is the time until then and `hand-over` the time
    from there to the op, up to `HAND_OVER_LIMIT_NS`. Whether it was held is unknown behind a wait
    that the trace tells nothing of.
    """
    rest = gaps.select(
        "device_id",
        "op_id",
        "end_ns",
        freed_ns="start_ns",
        start_ns=pl.max_horizontal("start_ns", "call_end_ns"),
    ).filter(pl.col("start_ns") < pl.col("end_ns"))
    held = rest.join(awaited, on="op_id", how="left")
    is_held = (pl.col("until_ns") >= pl.col("freed_ns")).fill_null(value=False)
    may_be_held = pl.col("op_id").is_in(untold.implode())
    unknown, latency = pl.lit("unknown", CAUSE), pl.lit("launch-latency", CAUSE)
    is_late = pl.when(may_be_held).then(unknown).otherwise(latency).alias("cause")
    late = held.filter(~is_held).with_columns(is_late)
    waited = held.filter(is_held).with_columns(
        cause=pl.lit("queue-wait", CAUSE), handed_ns=pl.col("until_ns") + HAND_OVER_LIMIT_NS
    )
    pending, handed, beyond = _cut(
        waited, ["until_ns", "handed_ns"], ["pending", "hand-over", None]
    )
    return [late, pending, handed, beyond.with_columns(is_late)]


def _host_behind(
    gaps: pl.DataFrame, steps: pl.DataFrame, silence: pl.DataFrame
) -> list[pl.DataFrame]:
    """The time of each gap until the next op's call returned, by what the host did instead."""
    behind = gaps.with_columns(end_ns=pl.min_horizontal("call_end_ns", "end_ns"))
    owned = behind.filter(pl.col("owner_call_id") >= 0)
    # The call that may have held the thread is missing.
    unknown = behind.filter(pl.col("owner_call_id") < 0).select(
        "device_id", "op_id", "start_ns", "end_ns", cause=pl.lit("unknown", CAUSE)
    )
    blocked = _cut(
        owned.with_columns(cause=pl.lit("host-blocked", CAUSE)),
        ["released_ns", "owner_end_ns", "call_start_ns"],
        ["blocked", "wake-up", "exposed", "launch"],
    )
    free = behind.filter(pl.col("owner_call_id").is_null())
    late = _cut(
        free.with_columns(cause=pl.lit("host-late", CAUSE)), ["call_start_ns"], ["host", "launch"]
    )
    pieces = pl.concat([*blocked, *late])
    on_host = pieces.filter(pl.col("part").is_in(_HOST_PARTS))
    starved = intersect(on_host, silence, _THREAD).with_columns(
        cause=pl.lit("starved", CAUSE),
        part=pl.lit(None, PART),
        owner_call_id=pl.lit(None, pl.Int64),
    )
    active = subtract(on_host, silence, _THREAD)
    named = intersect(active, steps, _THREAD)
    elsewhere = pieces.filter(~pl.col("part").is_in(_HOST_PARTS))
    return [unknown, elsewhere, starved, named, subtract(active, steps, _THREAD)]


def _cut(
    gaps: pl.DataFrame, moments: Sequence[str], parts: Sequence[str | None]
) -> list[pl.DataFrame]:
    """Cut each gap at moments given in order: `parts[i]` ends at `moments[i]`, the last at the end.

    A moment outside the gap, or before an earlier one, moves to the nearest that is not; pieces of
    no length vanish. So the pieces of a gap always add up to it.
    """
    bounds: list[pl.Expr] = [pl.col("start_ns")]
    for moment in moments:
        inside = pl.min_horizontal(moment, "end_ns")
        bounds.append(pl.max_horizontal(inside, bounds[-1]))
    bounds.append(pl.col("end_ns"))
    return [
        gaps.with_columns(
            start_ns=bounds[index], end_ns=bounds[index + 1], part=pl.lit(part, PART)
        ).filter(pl.col("start_ns") < pl.col("end_ns"))
        for index, part in enumerate(parts)
    ]
