"""What a host did that may order work: its calls and the markers about them, in one row each."""

import polars as pl

from tracekit.call_numbers import missing_calls, numbered_processes
from tracekit.intervals.matching import nearest
from tracekit.lost_calls import lost_calls
from tracekit.ordering.captures import without_captured
from tracekit.tables.rows import rows_of

SUBMITS = ("launch", "graph_launch", "copy", "fill", "event_record", "event_wait")
_SYNCS = ("event_sync", "event_query", "stream_sync", "device_sync", "free", "callback")
_STATEMENTS = {"record": "event_record", "wait": "event_wait", "sync": "event_sync"}
# By name, since to other readers they are calls like others. Values written and waited for in
# device memory order streams as events do, but no trace tells which belong together.
_NAMED = (
    (r"StreamBeginCapture", "capture_begin"),
    (r"StreamEndCapture", "capture_end"),
    (r"EventDestroy", "event_destroy"),
    (r"Stream(Wait|Write)Value|StreamBatchMemOp", "stream_value"),
)
KIND = pl.Enum([*SUBMITS, *_SYNCS, *(kind for _, kind in _NAMED), "lost"])
_THREAD = ["process_id", "thread_id"]
_EVENT = ["process_id", "event_key"]
_COLUMNS = [*_THREAD, "call_id", "kind", "stream_id", "event_key", "start_ns", "end_ns"]


def host_calls(
    ops: pl.DataFrame,
    calls: pl.DataFrame,
    copies: pl.DataFrame,
    marks: pl.DataFrame,
    waits: pl.DataFrame,
    ranges: pl.DataFrame,
) -> pl.DataFrame:
    """Return the calls and markers that may order work, in the order in which the host made them.

    What was called while its thread captured a graph did not run and is left out
    (`captures.without_captured`). A marker stands for its call where that was not recorded. Where
    calls are missing by their numbers (`missing_calls`) or may be lost (`lost_calls`), a row of
    kind `lost` stands for them.

    Returns:
        By `place` (0, 1, … over all processes): `process_id, thread_id, call_id` (null for markers
        and `lost`), `kind`, `stream_id`, `event_key`; of a wait, sync or query `record_place` (the
        place of its record, null if not known), `is_recorded` (the trace itself, or markers, say
        which) and `is_early` (if there was a record, it was made before recording began); of a copy
        `is_async` (by its name), `is_blocking`, `is_pinned` and `direction`; `start_ns, end_ns`.
    """
    made = [_made(ops, calls, marks), _marked_only(marks), *_lost(ops, calls, marks, ranges)]
    ordered = _in_order(pl.concat(made, how="diagonal_relaxed"), calls, waits)
    ran = without_captured(ordered, ops)
    placed = _with_streams(ran, ops, waits).with_row_index("place").cast({"place": pl.Int32})
    columns = ["is_blocking", "is_pinned", "direction"]
    how = copies.select("call_id", *columns).drop_nulls("call_id")
    how = how.unique("call_id", keep="first", maintain_order=True).sort("call_id")
    records = _records(placed, waits).sort("place")
    # Joins would copy all of a table that is as long as the calls.
    asked = placed.hstack(rows_of(placed["call_id"], how, "call_id"))
    found = asked.hstack(rows_of(placed["place"], records, "place"))
    # No call is missing without a `lost` row, and nobody else recorded the event.
    numbered = numbered_processes(calls)
    whole = numbered.filter(~numbered.is_in(_sharing(calls).implode(), nulls_equal=True))
    is_early = pl.col("is_marked") & pl.col("process_id").is_in(whole.implode())
    is_early &= pl.col("record_place").is_null() & ~pl.col("is_backward").fill_null(value=False)
    return found.with_columns(is_early=is_early).drop("is_marked", "is_backward")


def _in_order(made: pl.DataFrame, calls: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """Sort by start; a wait comes after the record that the trace says it is for.

    Of two threads, one can begin its wait before the other begins the record, and clocks of whole
    microseconds begin both at once.
    """
    starts = calls.select("call_id", "start_ns", "end_ns")
    late = (
        _pairs(waits)
        .join(starts, on="call_id")
        .join(starts.select(record_call_id="call_id", at="start_ns"), on="record_call_id")
        .filter(
            pl.col("at").is_between("start_ns", "end_ns"),
            pl.col("call_id") != pl.col("record_call_id"),
        )
        .select("call_id", "at")
    )
    if late.is_empty():
        numbers, begun = made["call_id"], made["start_ns"]
        is_in_order = not numbers.null_count() and numbers.is_sorted() and begun.is_sorted()
        return made if is_in_order else made.sort("start_ns", "call_id")
    moved = made.join(late, on="call_id", how="left", maintain_order="left")
    order = (pl.coalesce("at", "start_ns"), pl.col("at").is_not_null(), "call_id")
    return moved.sort(*order).drop("at")


def _lost(
    ops: pl.DataFrame, calls: pl.DataFrame, marks: pl.DataFrame, ranges: pl.DataFrame
) -> list[pl.DataFrame]:
    """Return the calls that are missing by their numbers; of CUDA, those that may be lost."""
    kind, when = pl.lit("lost", KIND), "start_ns"
    missing = missing_calls(calls, ranges).select(*_THREAD, when, end_ns=when, kind=kind)
    numbered = pl.col("process_id").is_in(numbered_processes(calls).implode(), nulls_equal=True)
    others = pl.concat(lost_calls(ops, calls, marks, ranges)).filter(~numbered).unique()
    # A marker without a call stands for it (`_marked_only`), and is not of work.
    told = _marked_only(marks).select(*_THREAD, "end_ns")
    others = others.join(told, on=told.columns, how="anti")
    return [missing, others.select(*_THREAD, "end_ns", start_ns="end_ns", kind=kind)]


def _pairs(waits: pl.DataFrame) -> pl.DataFrame:
    """Return `call_id, record_call_id` of the waits whose record the trace itself names."""
    recorded = waits.filter(pl.col("evidence") == "recorded")
    pairs = recorded.select(call_id="wait_call_id", record_call_id="record_call_id")
    return pairs.drop_nulls().unique("call_id", keep="first", maintain_order=True)


def _sharing(calls: pl.DataFrame) -> pl.Series:
    """Return the processes that have events of other processes."""
    named = calls.select("process_id", "name")
    names = calls.select("name").unique()
    opening = names.filter(pl.col("name").cast(pl.String).str.contains("IpcOpenEventHandle"))
    return named.join(opening, on="name", how="semi")["process_id"].unique()


def _made(ops: pl.DataFrame, calls: pl.DataFrame, marks: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that matter: an unknown API too if it launched something."""
    named = pl.lit(None, KIND)
    for pattern, kind in reversed(_NAMED):
        matches = pl.col("name").cast(pl.String).str.contains(pattern)
        named = pl.when(matches).then(pl.lit(kind, KIND)).otherwise(named)
    names = calls.select("name").unique().with_columns(named=named)
    known = calls["kind"].is_in([*SUBMITS, *_SYNCS])
    others = calls.filter(~known).join(names, on="name", how="left", nulls_equal=True)
    launched = ops.join(others.select("call_id"), on="call_id", how="semi")["call_id"].unique()
    is_launch = pl.col("call_id").is_in(launched.implode())
    named = pl.coalesce("named", pl.when(is_launch).then(pl.lit("launch", KIND)))
    others = others.with_columns(kind=named).drop_nulls("kind")
    # A look at each distinct name, not at each call's.
    is_async = names.filter(pl.col("name").cast(pl.String).str.contains("Async"))["name"]
    columns = [*_COLUMNS, pl.col("name").is_in(is_async.implode()).alias("is_async")]
    mine = calls.select(columns).filter(known).cast({"kind": KIND})
    told = marks.select("call_id", said_stream="stream_id", said_event="event_key")
    told = told.drop_nulls("call_id").unique("call_id", keep="last").sort("call_id")
    made = pl.concat([mine, others.select(columns)])
    return (
        made.hstack(rows_of(made["call_id"], told, "call_id"))
        .with_columns(
            pl.coalesce("stream_id", "said_stream").alias("stream_id"),
            # CUPTI numbers events by itself; a marker and its fellow use the handle.
            pl.coalesce("said_event", "event_key").alias("event_key"),
            is_marked=pl.col("said_event").is_not_null(),
        )
        .drop("said_stream", "said_event")
    )


def _marked_only(marks: pl.DataFrame) -> pl.DataFrame:
    kind = pl.col("statement").cast(pl.String).replace_strict(_STATEMENTS, return_dtype=KIND)
    return marks.filter(pl.col("call_id").is_null()).select(
        *_THREAD,
        "call_id",
        "stream_id",
        "event_key",
        kind=kind,
        start_ns="time_ns",
        end_ns="time_ns",
        is_marked=pl.lit(value=True),
    )


def _with_streams(ran: pl.DataFrame, ops: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """Fill in streams that the calls do not name: of their first op, or of a recorded wait."""
    recorded = waits.filter(pl.col("evidence") == "recorded")
    sides = [
        recorded.select(call_id=f"{call}_call_id", told=f"{side}_stream_id")
        for call, side in (("wait", "waiting"), ("record", "recording"))
    ]
    told = pl.concat(sides).drop_nulls().unique("call_id", keep="first").sort("call_id")
    unnamed = ran.filter(pl.col("stream_id").is_null()).select("call_id").drop_nulls()
    mine = ops.select("call_id", "stream_id").join(unnamed, on="call_id", how="semi")
    first = mine.drop_nulls().unique("call_id", keep="first").sort("call_id")
    first = first.rename({"stream_id": "of_op"})
    return (
        ran.hstack(rows_of(ran["call_id"], told, "call_id"))
        .hstack(rows_of(ran["call_id"], first, "call_id"))
        .with_columns(pl.coalesce("told", "stream_id", "of_op").alias("stream_id"))
        .drop("told", "of_op")
    )


def _records(placed: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """Return `place, record_place, is_recorded` of what waits for an event, where it is known.

    By the trace's own pairs; else the last record of that event before it. A handle is used again
    once its event is destroyed, so a destruction hides what was recorded before. So does a missing
    call, which may have been a later record.

    A pair whose wait ends before the record begins `is_backward`: what it orders is not known.
    """
    waiting = placed.filter(pl.col("kind").is_in(["event_wait", "event_sync", "event_query"]))
    records = placed.filter(pl.col("kind").is_in(["event_record", "event_destroy"]))
    is_record = pl.col("kind") == "event_record"
    keyed = nearest(
        waiting.select("place", "call_id", *_EVENT, "is_marked"),
        records.select(
            *_EVENT,
            before="place",
            found=pl.when(is_record).then("place"),
            is_record_marked="is_marked",
        ),
        left_on="place",
        right_on="before",
        by=_EVENT,
    )
    told = placed.select(record_call_id="call_id", told="place").drop_nulls()
    pairs = _pairs(waits).join(told, on="record_call_id", how="left")
    holes = placed.filter(kind="lost").select("process_id", hole="place")
    found = nearest(
        keyed.join(pairs, on="call_id", how="left", maintain_order="left"),
        holes,
        left_on="place",
        right_on="hole",
        by=["process_id"],
    )
    has_pair = pl.col("record_call_id").is_not_null()
    is_backward = has_pair & (pl.col("told") >= pl.col("place"))
    own = pl.when(~is_backward).then("told")
    is_last = (pl.col("found") > pl.col("hole")).fill_null(value=True)
    return found.select(
        "place",
        record_place=pl.when(has_pair).then(own).when(is_last).then("found"),
        is_recorded=has_pair | (pl.col("is_marked") & pl.col("is_record_marked")),
        is_backward=is_backward,
    )
