"""Events that pass on events: a record is done when what its stream itself waits for is done."""

import polars as pl

_ASKED = ["waiting_stream_id", "asked_at"]
_RECORDED = ["recording_stream_id", "recorded_at", "recorded_end_ns"]
# When all waits asked on a stream up to this one are over, as far as known.
_OVER = pl.col("pending_end_ns").cum_max().forward_fill().over("waiting_stream_id")
_BEFORE_RECORD = pl.col("over_ns").gather(pl.col("wait_before"))


def chained_ends(waits: pl.DataFrame) -> pl.Series:
    """Return `pending_end_ns` of waits, followed through streams that only pass an event on.

    A record completes when the ops that its stream was given before it have ended and the waits
    that its stream was asked for before it are over. Those may hang on others in turn, so the ends
    are worked out in rounds until none changes: as many rounds as the longest chain of waits with
    no op between them (two or three as a rule, the number of waits at worst), each a running
    maximum per stream.

    Args:
        waits: `[waiting_stream_id, asked_at, recording_stream_id, recorded_at, recorded_end_ns,
            pending_start_ns]`. `asked_at` and `recorded_at` place the two calls in the order of
            submission, in one unit; calls at one place are not before each other.
            `recorded_end_ns` is the end of the ops given to the recording stream before the record.

    Returns:
        One end per row, in the order of `waits`, not before `pending_start_ns`; null where nothing
        is known that the record stands behind. An earlier wait whose end is unknown counts for
        nothing: where its stream was given no op behind it, the end may be too early.
    """
    ordered = waits.select(*_ASKED, *_RECORDED, "pending_start_ns").with_row_index("row")
    ordered = ordered.sort(*_ASKED, nulls_last=True)
    ordered = _with_wait_before_record(ordered.with_row_index("place"))
    ordered = ordered.with_columns(_pending_end(pl.col("recorded_end_ns")))
    while True:
        chained = ordered.with_columns(over_ns=_OVER).with_columns(
            _pending_end(pl.max_horizontal("recorded_end_ns", _BEFORE_RECORD))
        )
        if chained["pending_end_ns"].equals(ordered["pending_end_ns"]):
            return ordered.sort("row")["pending_end_ns"]
        ordered = chained


def _with_wait_before_record(ordered: pl.DataFrame) -> pl.DataFrame:
    """Add `wait_before`, the place of the recording stream's last wait before the record."""
    asked = ordered.drop_nulls(_ASKED).select(
        "asked_at", recording_stream_id="waiting_stream_id", wait_before="place"
    )
    return (
        ordered.sort("recorded_at", nulls_last=True)
        .join_asof(
            asked.sort("asked_at", maintain_order=True),
            left_on="recorded_at",
            right_on="asked_at",
            by="recording_stream_id",
            allow_exact_matches=False,
            check_sortedness=False,
        )
        .sort("place")
    )


def _pending_end(done: pl.Expr) -> pl.Expr:
    end = pl.max_horizontal(done, "pending_start_ns")
    return pl.when(done.is_not_null()).then(end).alias("pending_end_ns")
