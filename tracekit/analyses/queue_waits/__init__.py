"""queue-waits: when a wait is pending in another hardware queue, and what that costs the others."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import polars as pl

from tracekit.analyses import Against, Analysis
from tracekit.analyses.queue_waits.comparison import compared
from tracekit.analyses.queue_waits.dispatches import Dispatches, measured
from tracekit.analyses.queue_waits.notes import caveats, findings
from tracekit.analyses.queue_waits.pending import lanes_of, spells
from tracekit.analyses.queue_waits.result import QUEUE_WAITS, SCOPES
from tracekit.intervals import clip, union

_PAIR = (
    "waiting_queue_id",
    "waiting_stream_id",
    "recording_queue_id",
    "recording_stream_id",
    "evidence",
)
_LENGTH = pl.col("end_ns") - pl.col("start_ns")


@dataclass(frozen=True)
class Profile:
    """What one trace says about waits.

    Attributes:
        pending: Rows of the result about devices and lanes.
        dispatches: Measures the cadence of its dispatches, which a trace without waits needs only
            where another is held against it.
        windows: Length of the window of each device: `device_id`, `window_ns`.
    """

    pending: pl.DataFrame
    dispatches: Callable[[], Dispatches]
    windows: pl.DataFrame


def queue_waits(  # noqa: PLR0913  a parameter is a table
    ops: pl.DataFrame,
    waits: pl.DataFrame,
    calls: pl.DataFrame,
    queues: pl.DataFrame,
    streams: pl.DataFrame,
    ranges: pl.DataFrame,
    marks: pl.DataFrame,
    windows: pl.DataFrame,
) -> pl.DataFrame:
    """Return when waits were pending, for whom, and what that cost the kernels beside them.

    A wait that a hardware queue has reached and whose event is not done is polled, and each
    dispatch in another queue may take longer meanwhile. Whether it does is worked out from the
    cadence of dispatches at the same position with and without a pending wait
    (`dispatches.measured`, `comparison.compared`): of the same graph, and of kernels launched one
    by one after the same kernel, where the host had submitted them in time (`one_by_one`). Where
    ops name no hardware queue streams stand for them.

    Args:
        ops: `op_id` excepted, all columns.
        waits: As in the table.
        calls: `call_id`, `process_id`, `thread_id`, `name`, `kind`, `start_ns`, `end_ns`,
            `stream_id`, `graph_exec_key`.
        queues: `queue_id`, `device_id`.
        streams: `stream_id`, `device_id`.
        ranges: Markers `tk1 step` make the cycles.
        marks: Waits of which no call was recorded.
        windows: One row per device.

    Returns:
        `QUEUE_WAITS`: per device all waits together, who waits for whom, then the graphs and the
        kernels launched one by one.

    Cannot tell a slow dispatch from a slow start of the kernel for another reason that comes and
    goes with the waits, nor what a wait costs kernels that the host submits too late, nor see a
    wait of which neither the call nor a marker was recorded, unless calls are numbered one by one.
    """
    return _result(_profile(ops, waits, calls, queues, streams, ranges, marks, windows), None)


def _profile(  # noqa: PLR0913  a parameter is a table
    ops: pl.DataFrame,
    waits: pl.DataFrame,
    calls: pl.DataFrame,
    queues: pl.DataFrame,
    streams: pl.DataFrame,
    ranges: pl.DataFrame,
    marks: pl.DataFrame,
    windows: pl.DataFrame,
) -> Profile:
    lanes = lanes_of(ops, queues, streams)
    found = spells(waits, calls, marks, ops, ranges, lanes)
    lengths = windows.select("device_id", window_ns=_LENGTH)
    dispatches = partial(measured, ops, calls, ranges, found, lanes, windows)
    return Profile(_pending(found.filter("is_wait"), windows), dispatches, lengths)


def _result(own: Profile, other: Profile | None) -> pl.DataFrame:
    if own.pending.is_empty():
        return QUEUE_WAITS.empty()
    dispatches = own.dispatches()
    costs = _costs(dispatches, None)
    if other is not None:
        # Of graphs that the trace cannot compare by itself only what the other says is news.
        with_other = _costs(dispatches, other.dispatches())
        costs = pl.concat([costs.filter(status="compared"), with_other])
    result = pl.concat([own.pending, costs], how="diagonal").join(
        own.windows, on="device_id", how="left", nulls_equal=True, maintain_order="left"
    )
    ordered = result.with_columns(
        added_share=(pl.col("added_ns") / pl.col("window_ns")).clip(0, 1),
    ).sort(*_ORDER, nulls_last=True)
    declared = [name for name in QUEUE_WAITS.schema if name in ordered.columns]
    return QUEUE_WAITS.conform(ordered.select(declared))


_SCOPES = pl.Enum(SCOPES)
_SOURCES = pl.Enum(["this trace", "other trace"])
_ORDER = (
    "device_id",
    pl.col("scope").cast(_SCOPES),
    -pl.col("pending_ns"),
    *_PAIR,
    -pl.col("added_ns"),
    -pl.col("dispatches_with"),
    "who",
    "graph_key",
    "nodes",
    pl.col("without_from").cast(_SOURCES),
)


def _pending(found: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return a row per device and per pair of lanes: how many waits, how long."""
    timed = clip(found.filter(pl.col("end_ns").is_not_null()), windows, ["device_id"])
    untimed = found.filter(pl.col("end_ns").is_null())
    open_part = untimed.with_columns(end_ns="until_ns")
    inside = clip(open_part, windows, ["device_id"])
    rows = []
    for scope, by in (("device", ["device_id"]), ("lane", ["device_id", *_PAIR])):
        islands = union(timed, by)
        total = islands.group_by(by).agg(pending_ns=_LENGTH.sum())
        longest = timed.sort(-_LENGTH, "start_ns").group_by(by, maintain_order=True)
        counted = longest.agg(
            waits=pl.len().cast(pl.Int64),
            longest_ns=_LENGTH.first(),
            longest_start_ns=pl.col("start_ns").first(),
        ).join(total, on=by, how="left", nulls_equal=True)
        unknown = inside.group_by(by).agg(waits_unknown=pl.len().cast(pl.Int64))
        both = counted.join(unknown, on=by, how="full", nulls_equal=True, coalesce=True)
        rows.append(both.with_columns(scope=pl.lit(scope)))
    counts = pl.col("waits", "waits_unknown", "pending_ns").fill_null(0)
    pair = pl.format("{} waits for {}", _who("waiting"), _who("recording"))
    is_lane = pl.col("scope") == "lane"
    streams = (pl.col(f"{side}_stream_id").cast(pl.String) for side in ("waiting", "recording"))
    return pl.concat(rows, how="diagonal").with_columns(
        counts,
        pl.when(~is_lane).then(pl.col("longest_ns", "longest_start_ns")),
        who=pl.when(is_lane).then(pair).otherwise(pl.lit("all waits")),
        streams=pl.when(is_lane).then(
            pl.format("{} for {}", *(stream.fill_null("?") for stream in streams))
        ),
    )


def _who(side: str) -> pl.Expr:
    """Return `queue 2`, or `stream 5` where the queue is not known."""
    queue, stream = (
        pl.format("{} {}", pl.lit(kind), pl.col(f"{side}_{kind}_id"))
        for kind in ("queue", "stream")
    )
    return pl.coalesce(queue, stream, pl.lit("?"))


def _costs(own: Dispatches, other: Dispatches | None) -> pl.DataFrame:
    """Return a row per graph or lane of kernels that had waits pending, with what they cost."""
    cost = compared(own, other)
    named = own.graphs.select("graph", "scope", "device_id", "graph_key", "nodes", "who")
    origin = "this trace" if other is None else "other trace"
    is_compared = pl.col("reason").is_null()
    return (
        cost.join(named, on="graph", maintain_order="left")
        .with_columns(
            pl.when(is_compared)
            .then(pl.col(f"{count}_compared"))
            .otherwise(pl.col(f"{count}_with"))
            .alias(f"{count}_with")
            for count in ("dispatches", "cycles")
        )
        .with_columns(
            pl.when(reason="host-limited")
            .then(pl.col("dispatches_with") + pl.col("dispatches_late"))
            .otherwise("dispatches_with")
            .alias("dispatches_with")
        )
        .with_columns(
            status=pl.when(is_compared)
            .then(pl.lit("compared"))
            .otherwise(pl.lit("not identifiable")),
            without_from=pl.when(is_compared).then(pl.lit(origin)),
        )
    )


ANALYSIS = Analysis(
    name="queue-waits",
    question="When was a wait pending in another hardware queue, and what did it cost others?",
    table=QUEUE_WAITS,
    compute=queue_waits,
    findings=findings,
    caveats=caveats,
    against=Against(_profile, _result),
)
