"""Markers of the grammar in docs/markers.md, read out of the ranges of any format into tables.

The document is the contract; who wrote the markers is not known here.
"""

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from tracekit.markers.attachment import with_calls
from tracekit.markers.buffers import accesses, pinned_copies
from tracekit.markers.lanes import described_streams, stream_ids, stream_votes
from tracekit.markers.statements import handles, statements
from tracekit.markers.waits import marked_waits
from tracekit.tables.activity import ACCESSES, CALLS, COPIES, MARKS
from tracekit.tables.identity import STREAMS
from tracekit.tables.notes import Note, Severity
from tracekit.trace import Trace

_ABOUT_EVENTS = ["record", "wait", "sync"]
# Of ten calls whose event a format names itself, nine must have the number of the marker.
_LEAST_SHARE = 0.9


def with_markers(trace: Trace) -> Trace:
    """Return a trace with what its markers say put into tables; without markers the same trace.

    Filled are `accesses`, `marks` and the `waits` that markers name on both sides; and, where they
    were null, `flags` and `name` of `streams`, `stream_id` and `event_key` of `calls`, `stream_id`
    and `is_pinned` of `copies`. What the format knew stays. A marker whose call cannot be told is
    not given to another (see `attachment`).

    It cannot tell a marker that is wrong, nor one call lost between two `use` of the same stream
    when the op of that call is lost as well.
    """
    said, unreadable = statements(trace.table("ranges"))
    if said.is_empty():
        return _changed(trace, {}, _unreadable_note(unreadable))
    calls, ops = trace.table("calls"), trace.table("ops")
    attached = with_calls(said, calls, ops)
    votes = stream_votes(attached, calls, ops)
    known = stream_ids(votes)
    attached, has_handles = _consistent(attached, votes, known, calls)
    streams, disagreeing = described_streams(trace.table("streams"), said, known)
    accessed, untold = accesses(said, attached)
    told = _told(attached, has_handles)
    filled = _filled_calls(calls, told)
    copies = pinned_copies(trace.table("copies"), calls, said)
    marks = pl.concat([trace.table("marks"), MARKS.conform(_marks(attached))])
    frames = {
        "accesses": pl.concat([trace.table("accesses"), ACCESSES.conform(accessed)]),
        "marks": marks,
        "waits": marked_waits(trace.table("waits"), marks, filled, ops),
        "streams": STREAMS.conform(streams),
        "calls": CALLS.conform(filled),
        "copies": COPIES.conform(_with_streams(copies, told)),
    }
    unclear = votes.select("process_id", "handle").unique().height - known.height
    notes = [
        *_unreadable_note(unreadable),
        *_notes(attached, untold, unclear, disagreeing),
    ]
    return _changed(trace, frames, notes)


def _changed(trace: Trace, frames: dict[str, pl.DataFrame], notes: list[Note]) -> Trace:
    if not frames and not notes:
        return trace
    before = trace.notes
    if "streams" in frames:
        before = _still_unknown(before, frames["streams"], trace.table("processes"))
    return Trace(
        {**trace.frames, **frames},
        [*before, *notes],
        trace.sources,
        trace.format_name,
        trace.results,
        trace.cycle_times,
    )


def _consistent(
    attached: pl.DataFrame, votes: pl.DataFrame, known: pl.DataFrame, calls: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Add `stream_id` of the handle; take the call from markers whose stream or event it denies.

    Returns:
        The markers, and `[process_id]` where the format's `event_key` is the handle of markers or
        not there at all, so that markers can fill it.
    """
    own = votes.select("range_id", own_stream_id="stream_id")
    keys = calls.select("call_id", own_key="event_key")
    both = (
        attached.join(
            known,
            left_on=["process_id", "stream"],
            right_on=["process_id", "handle"],
            how="left",
            maintain_order="left",
        )
        .join(own, on="range_id", how="left", maintain_order="left")
        .join(keys, on="call_id", how="left", maintain_order="left")
        .with_columns(event_key=_event_key())
    )
    agrees = pl.col("own_key") == pl.col("event_key")
    named = calls.filter(pl.col("event_key").is_not_null())["process_id"].unique()
    spoken = both.group_by("process_id").agg(share=agrees.mean())
    is_free = ~pl.col("process_id").is_in(named.implode())
    same = spoken.filter(is_free | (pl.col("share") >= _LEAST_SHARE))
    has_handles = pl.col("process_id").is_in(same["process_id"].implode())
    denied = (pl.col("stream_id") != pl.col("own_stream_id")).fill_null(value=False) | (
        has_handles & ~agrees.fill_null(value=True)
    )
    checked = both.with_columns(call_id=pl.when(~denied).then("call_id"))
    return checked.select(*attached.columns, "stream_id", "event_key"), same.select("process_id")


def _event_key() -> pl.Expr:
    is_event = pl.col("verb").is_in(_ABOUT_EVENTS)
    number = handles(pl.when(is_event).then("subject"))
    return number.cast(pl.Int64, strict=False)


def _marks(attached: pl.DataFrame) -> pl.DataFrame:
    return attached.filter(pl.col("verb").is_in(_ABOUT_EVENTS)).select(
        "range_id",
        "process_id",
        "thread_id",
        "event_key",
        "stream_id",
        "call_id",
        time_ns="start_ns",
        statement="verb",
    )


def _told(attached: pl.DataFrame, has_handles: pl.DataFrame) -> pl.DataFrame:
    """Return per call, `call_id`, the `stream_id` and `event_key` that its markers agree on."""
    key = pl.when(pl.col("process_id").is_in(has_handles["process_id"].implode())).then("event_key")
    return (
        attached.drop_nulls("call_id")
        .with_columns(event_key=key)
        .group_by("call_id")
        .agg(
            pl.when(pl.col(name).drop_nulls().n_unique() == 1)
            .then(pl.col(name).drop_nulls().first())
            .alias(name)
            for name in ("stream_id", "event_key")
        )
    )


def _filled_calls(calls: pl.DataFrame, told: pl.DataFrame) -> pl.DataFrame:
    both = calls.join(told, on="call_id", how="left", suffix="_told", maintain_order="left")
    return both.with_columns(
        pl.coalesce(name, f"{name}_told").alias(name) for name in ("stream_id", "event_key")
    ).select(calls.columns)


def _with_streams(copies: pl.DataFrame, told: pl.DataFrame) -> pl.DataFrame:
    streams = told.select("call_id", told="stream_id")
    both = copies.join(streams, on="call_id", how="left", maintain_order="left")
    return both.with_columns(stream_id=pl.coalesce("stream_id", "told")).drop("told")


def _still_unknown(
    notes: Sequence[Note], streams: pl.DataFrame, processes: pl.DataFrame
) -> list[Note]:
    """Return the notes, those on streams without flags counted anew."""
    flagless = streams.filter(pl.col("flags").is_null()).join(processes, on="process_id")
    left = dict(flagless.group_by("source").len().iter_rows())
    counted = [
        replace(note, count=left.get(note.source, 0))
        if note.code.endswith(".stream-flags-unknown")
        else note
        for note in notes
    ]
    return [note for note in counted if note.count]


def _unreadable_note(count: int) -> list[Note]:
    if not count:
        return []
    message = "Markers begin with tk1 and are not of the grammar in docs/markers.md; left alone."
    return [Note("markers.unreadable", Severity.NOTICE, message, count)]


def _notes(attached: pl.DataFrame, untold: int, unclear: int, disagreeing: int) -> list[Note]:
    speaking = attached.filter(pl.col("verb").is_in(["use", "replay"]))
    found = (
        (
            "markers.use-without-call",
            speaking["call_id"].null_count(),
            "The call that a use or replay marker speaks of is not in the trace; no access of it "
            "is known.",
        ),
        (
            "markers.replay-without-graph",
            untold,
            "No marker says what the graph reads and writes; say it again when recording begins.",
        ),
        (
            "markers.stream-unclear",
            unclear,
            "A stream's handle in markers is several of the trace's streams; it is taken for none.",
        ),
        (
            "markers.stream-contradicts",
            disagreeing,
            "Markers say other flags of a stream than the trace itself, which counts.",
        ),
    )
    return [Note(code, Severity.NOTICE, message, count) for code, count, message in found if count]
