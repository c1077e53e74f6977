"""Which API call a marker speaks of. Where a call's row may be missing, it speaks of none.

A marker and its call are neighbours on one thread. What else happened between the two - another
call that a program makes, a marker that has a call of its own, the edge of a step - shows that the
call itself is not in the trace; then another call must not get what was said of it.
"""

import polars as pl

THREAD = ["process_id", "thread_id"]
# The calls a program asks for. What a framework adds on its own account (allocating, querying,
# asking for the device) may come between a marker and its call.
_ASKED_FOR = [
    *("launch", "graph_launch", "copy", "fill"),
    *("event_record", "event_wait", "event_sync", "stream_sync", "device_sync"),
]
_NEXT_KINDS = {
    "use": ["launch", "copy", "fill"],
    "replay": ["graph_launch"],
    "wait": ["event_wait"],
}
# `use` may stand beside others of the same call; the rest have one call each.
_ENDING = {
    "use": ["replay", "record", "wait", "sync"],
    "replay": ["use", "replay", "record", "wait", "sync"],
    "wait": ["use", "replay", "record", "wait", "sync"],
}
# Below every correlation number.
_NO_NUMBER = -(2**63)
_LAST_KINDS = {"record": "event_record", "sync": "event_sync"}


def with_calls(said: pl.DataFrame, calls: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the `use`, `replay`, `record`, `wait` and `sync` markers with `call_id`.

    `use`, `replay` and `wait` speak of the thread's next call that starts at or after the marker's
    start, if it is of their kind; `record` and `sync` of its last that has ended by then. Null
    where there is none or another thing lies between, and where two calls are at one instant.

    Args:
        said: Of `statements`.
        calls: `call_id`, `process_id`, `thread_id`, `kind`, `start_ns`, `end_ns`,
            `correlation_id`.
        ops: `process_id`, `correlation_id`, `call_id`.
    """
    placed = calls.drop_nulls([*THREAD, "start_ns", "end_ns"])
    # A call whose name tells nothing may have launched something all the same.
    is_asked = pl.col("kind").is_in(_ASKED_FOR) | (
        (pl.col("kind") == "other") & pl.col("call_id").is_in(ops["call_id"].unique().implode())
    )
    asked = placed.filter(is_asked)
    suspect = _after_a_lost_call(asked, ops)
    following = [_next_call(said, verb, asked, suspect) for verb in _NEXT_KINDS]
    with_queries = placed.filter(is_asked | (pl.col("kind") == "event_query"))
    preceding = [_last_call(said, verb, with_queries) for verb in _LAST_KINDS]
    found = pl.concat([*following, *preceding])
    # Two markers that each have a call of their own are not of one call.
    shared = (pl.len().over("call_id", "verb") > 1) & (pl.col("verb") != "use")
    found = found.with_columns(call_id=pl.when(~shared).then("call_id"))
    return _of_one_stream(found.sort("start_ns", "range_id"))


def _next_call(
    said: pl.DataFrame, verb: str, asked: pl.DataFrame, suspect: pl.Series
) -> pl.DataFrame:
    targets = asked.select(
        *THREAD,
        "call_id",
        "kind",
        called_ns="start_ns",
        is_alone=pl.len().over(*THREAD, "start_ns") == 1,
    ).sort("called_ns")
    ends = _moments(said, _ENDING[verb])
    found = (
        said.filter(pl.col("verb") == verb)
        .join_asof(
            targets,
            left_on="start_ns",
            right_on="called_ns",
            by=THREAD,
            strategy="forward",
            check_sortedness=False,
        )
        .join_asof(
            ends,
            left_on="start_ns",
            right_on="moment_ns",
            by=THREAD,
            strategy="forward",
            allow_exact_matches=False,
            check_sortedness=False,
        )
    )
    is_its = (
        pl.col("is_alone")
        & pl.col("kind").is_in(_NEXT_KINDS[verb])
        & (pl.col("moment_ns").is_null() | (pl.col("moment_ns") > pl.col("called_ns")))
        & ~pl.col("call_id").is_in(suspect.implode())
    )
    return _attached(said, found, is_its)


def _last_call(said: pl.DataFrame, verb: str, asked: pl.DataFrame) -> pl.DataFrame:
    targets = asked.select(
        *THREAD,
        "call_id",
        "kind",
        returned_ns="end_ns",
        is_alone=pl.len().over(*THREAD, "end_ns") == 1,
    ).sort("returned_ns")
    others = _moments(said, ["use", "replay", "record", "wait", "sync"])
    found = (
        said.filter(pl.col("verb") == verb)
        .join_asof(
            targets, left_on="start_ns", right_on="returned_ns", by=THREAD, check_sortedness=False
        )
        .join_asof(
            others,
            left_on="start_ns",
            right_on="moment_ns",
            by=THREAD,
            allow_exact_matches=False,
            check_sortedness=False,
        )
    )
    is_its = (
        pl.col("is_alone")
        & (pl.col("kind") == _LAST_KINDS[verb])
        & (pl.col("moment_ns").is_null() | (pl.col("moment_ns") < pl.col("returned_ns")))
    )
    return _attached(said, found, is_its)


def _attached(said: pl.DataFrame, found: pl.DataFrame, is_its: pl.Expr) -> pl.DataFrame:
    return found.with_columns(call_id=pl.when(is_its).then("call_id")).select(
        *said.columns, "call_id"
    )


def _moments(said: pl.DataFrame, verbs: list[str]) -> pl.DataFrame:
    """Return when a thread said one of these, and began or ended a step."""
    steps = said.filter(pl.col("verb") == "step")
    begun = pl.concat([said.filter(pl.col("verb").is_in(verbs)), steps])
    both = [begun.select(*THREAD, moment_ns="start_ns"), steps.select(*THREAD, moment_ns="end_ns")]
    return pl.concat(both).sort("moment_ns")


def _after_a_lost_call(asked: pl.DataFrame, ops: pl.DataFrame) -> pl.Series:
    """Return the calls before which a call is missing that launched an op.

    Correlation numbers grow with time. An op without a call, whose number lies between those of a
    thread's two calls, was launched between them, on this thread or on another; before a thread's
    first call it may have been launched before recording began, which cannot be told apart.
    """
    orphans = ops.filter(pl.col("call_id").is_null()).drop_nulls(["process_id", "correlation_id"])
    number = pl.col("correlation_id")
    behind = asked.sort("start_ns", "end_ns").select(
        "process_id", "call_id", number, before=number.shift(1).over(THREAD).fill_null(_NO_NUMBER)
    )
    if orphans.is_empty():
        return behind.clear()["call_id"]
    lost = orphans.select("process_id", lost=number).unique().sort("lost")
    found = behind.sort("before").join_asof(
        lost,
        left_on="before",
        right_on="lost",
        by="process_id",
        strategy="forward",
        allow_exact_matches=False,
        check_sortedness=False,
    )
    return found.filter(pl.col("lost") < number)["call_id"]


def _of_one_stream(attached: pl.DataFrame) -> pl.DataFrame:
    """Take the call from those `use` that name another stream than the one nearest to the call."""
    last = pl.col("stream").drop_nulls().last().over("call_id")
    is_other = (pl.col("verb") == "use") & (pl.col("stream") != last)
    return attached.with_columns(call_id=pl.when(~is_other.fill_null(value=False)).then("call_id"))
