"""What the host was doing: the range open on a thread at any time, and what stood around a call."""

import polars as pl

from tracekit.intervals import gaps, union, with_parents

_THREAD = ["process_id", "thread_id"]

# Operators and calls of a framework at work follow each other within some hundred microseconds of
# Python; a thread that shows nothing for longer had nothing to do, as far as the trace can say.
MIN_SILENCE_NS = 1_000_000
# Numbers that merely count (step 12, ProfilerStep#3, bs=8) would give every step a row of its own;
# numbers that are part of a name (layer4) stay.
_COUNTING = r"(^|[^A-Za-z0-9_])\d+"
# Statements of the marker grammar but `step` are instants; a backend that has none writes short
# ranges, in which the host does nothing.
_IS_INSTANT = pl.col("text").str.contains(
    r"^tk1 (stream|buffer|use|graph|replay|record|wait|sync) "
)
_IS_RANGE = ~_IS_INSTANT.fill_null(value=False)


def range_steps(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return for each thread which range was open when.

    The innermost marker speaks; where no marker is open, the outermost operator. Counting numbers
    in its text become `*`.

    Args:
        ranges: The `ranges` table.

    Returns:
        `process_id, thread_id, start_ns, end_ns, range`, disjoint per thread; the time in which
        nothing is open is not covered.
    """
    speaking = _speaking(ranges).lazy()
    outer = speaking.select(parent_id="range_id", outer="text")
    # Among events at one instant the last decides: ends before starts, inner ends before outer
    # ends, outer starts before inner starts.
    opens = speaking.select(
        *_THREAD, at="start_ns", range="text", order=pl.lit(1), rank=-pl.col("end_ns")
    )
    closes = speaking.join(outer, on="parent_id", how="left").select(
        *_THREAD, at="end_ns", range="outer", order=pl.lit(0), rank=-pl.col("start_ns")
    )
    return (
        pl.concat([opens, closes])
        .sort(*_THREAD, "at", "order", "rank")
        .group_by(*_THREAD, "at", maintain_order=True)
        .agg(pl.col("range").last())
        .select(
            *_THREAD,
            start_ns="at",
            end_ns=pl.col("at").shift(-1).over(_THREAD),
            range=without_counters(pl.col("range")),
        )
        .drop_nulls(["range", "end_ns"])
        .collect()
    )


def silences(calls: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    """Return when each thread that has ranges had none open and called nothing, for long.

    A thread without any range cannot show that none was open, so it has no silence.

    Returns:
        `process_id, thread_id, start_ns, end_ns`, each at least `MIN_SILENCE_NS`, disjoint.
    """
    threads = ranges.select(_THREAD).unique()
    if threads.is_empty():
        return ranges.select(*_THREAD, "start_ns", "end_ns")
    called = calls.join(threads, on=_THREAD, how="semi").select(*_THREAD, "start_ns", "end_ns")
    active = pl.concat([called, ranges.select(*_THREAD, "start_ns", "end_ns")])
    length = pl.col("end_ns") - pl.col("start_ns")
    return gaps(union(active, _THREAD), _THREAD).filter(length >= MIN_SILENCE_NS)


def without_counters(text: pl.Expr) -> pl.Expr:
    """Return text with the numbers that count replaced by `*`, so that steps fall together."""
    return text.str.replace_all(_COUNTING, "${1}*")


def _speaking(ranges: pl.DataFrame) -> pl.DataFrame:
    """Markers, and operators that stand in no other operator or marker, nested anew."""
    named = ranges.filter(
        pl.col("kind") != "frame", pl.col("start_ns") < pl.col("end_ns"), _IS_RANGE
    ).drop("parent_id")
    nested = with_parents(named, _THREAD)
    spoken_for = (pl.col("kind") == "operator") & pl.col("parent_id").is_not_null()
    return with_parents(nested.filter(~spoken_for).drop("parent_id"), _THREAD)


def innermost_around(calls: pl.DataFrame, ranges: pl.DataFrame, kinds: list[str]) -> pl.DataFrame:
    """Return text and start of the innermost range of some kinds around each call.

    Args:
        calls: `call_id, process_id, thread_id, start_ns`.
        ranges: The `ranges` table.
        kinds: Kinds of range that count.

    Returns:
        `call_id, text, opened_ns`, one row per call that has such a range around it.
    """
    moments = calls.select(*_THREAD, "call_id", at="start_ns").sort("at")
    around = (
        ranges.lazy()
        .filter(pl.col("kind").is_in(kinds), _IS_RANGE)
        .sort("start_ns")
        # A range holds some call if the first call after its start begins before its end.
        .join_asof(
            moments.lazy().select(*_THREAD, "at"),
            left_on="start_ns",
            right_on="at",
            by=_THREAD,
            strategy="forward",
            coalesce=False,
            check_sortedness=False,
        )
        .filter(pl.col("at") < pl.col("end_ns"))
        .select(*_THREAD, "start_ns", "end_ns", "text", call_id=pl.lit(None, pl.Int64))
        .collect()
    )
    points = moments.select(
        *_THREAD,
        start_ns="at",
        end_ns=pl.col("at"),
        text=pl.lit(None, pl.String),
        call_id="call_id",
    )
    both = pl.concat([around, points]).with_row_index("range_id")
    nested = with_parents(both, _THREAD)
    texts = both.select(parent_id="range_id", found="text", opened_ns="start_ns")
    return (
        nested.drop_nulls("call_id")
        .join(texts, on="parent_id", how="inner")
        .select("call_id", "opened_ns", text="found")
        .drop_nulls("text")
    )
