"""Every gap cut into pieces with one cause each: the ledger before it is summed up."""

from collections.abc import Sequence

import polars as pl

from tracekit.analyses.idle_gaps.blocking import blocking_calls, with_blocker
from tracekit.analyses.idle_gaps.gaps import device_gaps, outside, submitted_ops
from tracekit.analyses.idle_gaps.under import range_steps
from tracekit.intervals import clip, intersect, subtract

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
PIECE_SCHEMA = pl.Schema(
    {
        "device_id": pl.Int32(),
        "gap_id": pl.UInt32(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "cause": pl.String(),
        "part": pl.String(),
        "owner_call_id": pl.Int64(),
        "range": pl.String(),
    }
)
_HOST_PARTS = ("exposed", "host", "launch")


def idle_pieces(  # noqa: PLR0913  its signature is its dependencies
    ops: pl.DataFrame,
    calls: pl.DataFrame,
    copies: pl.DataFrame,
    waits: pl.DataFrame,
    ranges: pl.DataFrame,
    windows: pl.DataFrame,
) -> pl.DataFrame:
    """Return the idle time of each device, every nanosecond in exactly one row.

    Returns:
        Columns of `PIECE_SCHEMA`, disjoint per device and ordered. `gap_id` numbers the gap (null
        at the edges of a window), `part` is the stage within the cause, `owner_call_id` the
        blocking call behind a `host-blocked` piece, `range` what the host was doing. The lengths
        add up to window − busy.
    """
    submitted = submitted_ops(ops, calls)
    gaps = device_gaps(submitted, calls)
    has_call = (pl.col("evidence") == "call") & ~pl.col("is_within_graph")
    was_submitted = pl.col("call_end_ns") <= pl.col("start_ns")
    owned = with_blocker(
        gaps.filter(has_call & ~was_submitted), blocking_calls(calls, copies, submitted), submitted
    )
    parts = [
        _without_host(gaps.filter(~has_call)),
        _submitted_in_time(gaps.filter(has_call & was_submitted), submitted, calls, waits),
        _host_behind(owned, calls, ranges),
        outside(submitted, windows).with_columns(cause=pl.lit("edge")),
    ]
    pieces = pl.concat([PIECE_SCHEMA.to_frame(), *parts], how="diagonal_relaxed")
    known = windows.filter(pl.col("device_id").is_not_null())
    return clip(pieces.select(PIECE_SCHEMA.names()), known, ["device_id"]).sort(
        "device_id", "start_ns"
    )


def _without_host(gaps: pl.DataFrame) -> pl.DataFrame:
    """Gaps that need no look at the host: inside a graph launch, or without a recorded call."""
    cause = (
        pl.when("is_within_graph")
        .then(pl.lit("dispatch"))
        .when(pl.col("evidence") == "before-window")
        .then(pl.lit("edge"))
        .otherwise(pl.lit("unknown"))
    )
    return gaps.select("device_id", "gap_id", "start_ns", "end_ns", cause=cause)


def _submitted_in_time(
    gaps: pl.DataFrame, submitted: pl.DataFrame, calls: pl.DataFrame, waits: pl.DataFrame
) -> pl.DataFrame:
    """Gaps before an op that was already submitted: held by another queue's op, or just late.

    It was held if a wait stood before it in its stream and what the wait was for ended no earlier
    than everything else on the device. `pending` is the time until then, `hand-over` the rest.
    """
    held = gaps.join(_awaited(submitted, calls, waits), on="op_id", how="left")
    is_held = (pl.col("until_ns") >= pl.col("start_ns")).fill_null(value=False)
    late = held.filter(~is_held).with_columns(cause=pl.lit("launch-latency"))
    waited = held.filter(is_held).with_columns(cause=pl.lit("queue-wait"))
    return pl.concat([late, *_cut(waited, ["until_ns"], ["pending", "hand-over"])], how="diagonal")


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
    )
    first_of_call = (
        submitted.lazy()
        .drop_nulls(["stream_id", "call_start_ns"])
        .sort("call_start_ns", "start_ns")
        .unique(["stream_id", "call_id"], keep="first", maintain_order=True)
        .select("stream_id", "op_id", "call_start_ns")
    )
    return (
        asked.join_asof(
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


def _host_behind(owned: pl.DataFrame, calls: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    """Gaps whose next op had not been submitted when they began, by what the host did instead."""
    is_owned = pl.col("owner_call_id").is_not_null()
    blocked = _cut(
        owned.filter(is_owned).with_columns(cause=pl.lit("host-blocked")),
        ["released_ns", "owner_end_ns", "call_start_ns"],
        ["blocked", "wake-up", "exposed", "launch"],
    )
    late = _cut(
        owned.filter(~is_owned).with_columns(cause=pl.lit("host-late")),
        ["call_start_ns"],
        ["host", "launch"],
    )
    pieces = pl.concat([*blocked, *late], how="diagonal")
    on_host = pl.col("part").is_in(_HOST_PARTS)
    labelled = _by_range(pieces.filter(on_host), range_steps(ranges))
    named = pl.concat([pieces.filter(~on_host), labelled], how="diagonal")
    idle_threads = _starved_gaps(owned.filter(~is_owned), labelled, calls, ranges)
    is_starved = (pl.col("part") == "host") & pl.col("gap_id").is_in(idle_threads.implode())
    return named.with_columns(cause=pl.when(is_starved).then(pl.lit("starved")).otherwise("cause"))


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
            start_ns=bounds[index], end_ns=bounds[index + 1], part=pl.lit(part)
        ).filter(pl.col("start_ns") < pl.col("end_ns"))
        for index, part in enumerate(parts)
    ]


def _by_range(pieces: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Cut pieces where the open range changes, and say which it is; null where none is open."""
    thread = ["process_id", "thread_id"]
    labelled = intersect(pieces, steps, thread)
    return pl.concat([labelled, subtract(pieces, steps, thread)], how="diagonal")


def _starved_gaps(
    late: pl.DataFrame, labelled: pl.DataFrame, calls: pl.DataFrame, ranges: pl.DataFrame
) -> pl.Series:
    """Return the gaps in which the issuing thread had no range open and called nothing.

    Only a thread that has ranges at all can show that none was open: without ranges the gap stays
    `host-late`, since silence is then no evidence.
    """
    thread = ["process_id", "thread_id"]
    previous = calls.lazy().select(
        "call_id",
        active_ns=pl.col("end_ns").cum_max().shift(1).over(thread, order_by="start_ns"),
    )
    silent: pl.DataFrame = (
        late.lazy()
        .join(ranges.lazy().select(thread).unique(), on=thread, how="semi")
        .join(previous, on="call_id", how="left")
        .filter((pl.col("active_ns") <= pl.col("start_ns")).fill_null(value=True))
        .select("gap_id")
        .collect()
    )
    busy = labelled.filter(pl.col("range").is_not_null() & (pl.col("part") == "host"))
    return silent.join(busy, on="gap_id", how="anti")["gap_id"]
