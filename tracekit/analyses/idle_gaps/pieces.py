"""Every gap cut into pieces with one cause each: the ledger before it is summed up."""

from collections.abc import Iterator, Sequence

import polars as pl

from tracekit.analyses.idle_gaps.blocking import blocking_calls, gap_owners
from tracekit.analyses.idle_gaps.gaps import device_gaps, outside, submitted_ops
from tracekit.analyses.idle_gaps.under import range_steps
from tracekit.intervals import clip, intersect, subtract, union
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
_THREAD = ["process_id", "thread_id"]

# Ops are looked at this many at a time, so that memory is bounded however many gaps there are.
_OPS_AT_ONCE = 1_000_000


def idle_pieces(
    ops: pl.DataFrame,
    calls: pl.DataFrame,
    copies: pl.DataFrame,
    waits: pl.DataFrame,
    ranges: pl.DataFrame,
    windows: pl.DataFrame,
) -> Iterator[pl.DataFrame]:
    """Yield the idle time of each device, every nanosecond in exactly one row.

    Yields:
        Frames of `PIECE_SCHEMA`, disjoint per device, each of whole gaps. `op_id` is the op that
        ended the gap (null at the edges of a window), `part` the stage within the cause,
        `owner_call_id` the blocking call behind a `host-blocked` piece, `range` what the host was
        doing. The lengths add up to window − busy.
    """
    known = windows.filter(pl.col("device_id").is_not_null())
    submitted = submitted_ops(ops, calls)
    awaited = _awaited(submitted, calls, waits)
    blockers = blocking_calls(calls, copies, submitted)
    owners = gap_owners(submitted, calls, blockers)
    threads = calls.select("call_id", "thread_id")
    steps = range_steps(ranges)
    yield _conform([outside(submitted, known).with_columns(cause=pl.lit("edge", CAUSE))])
    for some in submitted.iter_slices(_OPS_AT_ONCE):
        gaps = device_gaps(some)
        has_call = pl.col("call_start_ns").is_not_null() & ~pl.col("is_within_graph")
        in_time = pl.col("call_end_ns") <= pl.col("start_ns")
        behind = gaps.filter(has_call & ~in_time)
        behind = behind.hstack(rows_of(behind["call_id"], threads, "call_id")).hstack(
            rows_of(behind["op_id"], owners, "op_id")
        )
        parts = [
            _without_host(gaps.filter(~has_call)),
            *_submitted_in_time(gaps.filter(has_call & in_time), awaited),
            *_host_behind(behind, calls, ranges, steps),
        ]
        yield clip(_conform(parts), known, ["device_id"])


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


def _submitted_in_time(gaps: pl.DataFrame, awaited: pl.DataFrame) -> list[pl.DataFrame]:
    """Gaps before an op that was already submitted: held by another queue's op, or just late.

    It was held if a wait stood before it in its stream and what the wait was for ended no earlier
    than everything else on the device. `pending` is the time until then, `hand-over` the rest.
    """
    bare = gaps.select("device_id", "op_id", "start_ns", "end_ns")
    held = bare.join(awaited, on="op_id", how="left")
    is_held = (pl.col("until_ns") >= pl.col("start_ns")).fill_null(value=False)
    late = held.filter(~is_held).with_columns(cause=pl.lit("launch-latency", CAUSE))
    waited = held.filter(is_held).with_columns(cause=pl.lit("queue-wait", CAUSE))
    return [late, *_cut(waited, ["until_ns"], ["pending", "hand-over"])]


def _awaited(submitted: pl.DataFrame, calls: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """Return `op_id, until_ns`: for the op right behind a wait, when the awaited work was done."""
    asked = (
        waits.lazy()
        .filter(pl.col("waiting_stream_id") != pl.col("recording_stream_id"))
        .join(
            calls.lazy().select(wait_call_id="call_id", asked_ns="start_ns"),
            on="wait_call_id",
            how="inner",
        )
        .select("asked_ns", stream_id="waiting_stream_id", until_ns="pending_end_ns")
        .drop_nulls()
        .sort("asked_ns")
        .collect()
    )
    first_of_call = (
        submitted.lazy()
        .join(asked.lazy().select("stream_id").unique(), on="stream_id", how="semi")
        .drop_nulls("call_start_ns")
        .sort("call_start_ns", "start_ns")
        .unique(["stream_id", "call_id"], keep="first", maintain_order=True)
        .select("stream_id", "op_id", "call_start_ns")
    )
    return (
        asked.lazy()
        .join_asof(
            first_of_call,
            left_on="asked_ns",
            right_on="call_start_ns",
            by="stream_id",
            strategy="forward",
            check_sortedness=False,
        )
        .drop_nulls("op_id")
        .group_by("op_id")
        .agg(pl.col("until_ns").max())
        .collect()
    )


def _host_behind(
    gaps: pl.DataFrame, calls: pl.DataFrame, ranges: pl.DataFrame, steps: pl.DataFrame
) -> list[pl.DataFrame]:
    """Gaps whose next op had not been submitted when they began, by what the host did instead."""
    owned = gaps.filter(pl.col("owner_call_id").is_not_null())
    free = gaps.filter(pl.col("owner_call_id").is_null())
    blocked = _cut(
        owned.with_columns(cause=pl.lit("host-blocked", CAUSE)),
        ["released_ns", "owner_end_ns", "call_start_ns"],
        ["blocked", "wake-up", "exposed", "launch"],
    )
    late = _cut(
        free.with_columns(cause=pl.lit("host-late", CAUSE)), ["call_start_ns"], ["host", "launch"]
    )
    pieces = pl.concat([*blocked, *late])
    on_host = pl.col("part").is_in(_HOST_PARTS)
    labelled = _by_range(pieces.filter(on_host), steps)
    starved = _starved_gaps(free, labelled, calls, ranges)
    is_starved = (pl.col("part") == "host") & pl.col("op_id").is_in(starved.implode())
    cause = pl.when(is_starved).then(pl.lit("starved", CAUSE)).otherwise("cause")
    return [pieces.filter(~on_host), labelled.with_columns(cause=cause)]


def _cut(gaps: pl.DataFrame, moments: Sequence[str], parts: Sequence[str]) -> list[pl.DataFrame]:
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


def _by_range(pieces: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Cut pieces where the open range changes, and say which it is; null where none is open."""
    labelled = intersect(pieces, steps, _THREAD)
    return pl.concat([labelled, subtract(pieces, steps, _THREAD)], how="diagonal")


def _starved_gaps(
    late: pl.DataFrame, labelled: pl.DataFrame, calls: pl.DataFrame, ranges: pl.DataFrame
) -> pl.Series:
    """Return the gaps in which the issuing thread had no range open and called nothing.

    Only a thread that has ranges at all can show that none was open: without ranges the gap stays
    `host-late`, since silence is then no evidence.
    """
    could_speak = late.join(ranges.select(_THREAD).unique(), on=_THREAD, how="semi")
    named = labelled.filter(pl.col("range").is_not_null() & (pl.col("part") == "host"))
    quiet = could_speak.join(named, on="op_id", how="anti")
    if quiet.is_empty():
        return quiet["op_id"]
    # The call that ends the gap does not count; any other of its thread that meets the gap does.
    before = calls.join(quiet, on="call_id", how="anti").select(*_THREAD, "start_ns", "end_ns")
    host = quiet.select("op_id", *_THREAD, "start_ns", end_ns="call_start_ns")
    active = intersect(
        host.filter(pl.col("start_ns") < pl.col("end_ns")), union(before, _THREAD), _THREAD
    )
    return quiet.join(active, on="op_id", how="anti")["op_id"]
