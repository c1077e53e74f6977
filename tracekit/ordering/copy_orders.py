"""Every copy, and whether what else uses its memory is ordered with it: how, and how surely."""

import numpy as np
import polars as pl

from tracekit.ordering import OPS_AT_ONCE, Tie, ties
from tracekit.ordering.conflicts import conflicts, memory_uses
from tracekit.ordering.unseen import NO_STREAM, WORK, maybe_met, missing_work, undeclared, with_done
from tracekit.tables.rows import rows_of

ORDERS = ("unordered", "accident", "unknown", "host-sync", "event", "stream", "no-conflict")
"""From the worst to the best."""
CONFLICTS = ("overwrites-read", "overwrites-write", "reads-written")
CERTAINTIES = ("certain", "possible")
ORDER, CONFLICT, CERTAINTY = pl.Enum(ORDERS), pl.Enum(CONFLICTS), pl.Enum(CERTAINTIES)
EVIDENCE = pl.Enum(["recorded", "inferred"])

_ORDER_OF_TIE = {
    "stream": "stream",
    "recorded-event": "event",
    "inferred-event": "event",
    "host": "host-sync",
    "assumed": "unknown",
}
# Of a copy and work that it meets: so many at a time bound the memory.
PAIRS_AT_ONCE = 250_000
_TIMES = ["start_ns", "end_ns"]
_NEVER = np.iinfo(np.int64).max


def copy_orders(
    host: pl.DataFrame,
    ops: pl.DataFrame,
    copies: pl.DataFrame,
    accesses: pl.DataFrame,
    streams: pl.DataFrame,
) -> pl.DataFrame:
    """Return each copy that the host asked for, with the worst-ordered work that it meets.

    A copy meets work that was declared, or says by its addresses, to use the same memory, where one
    of them writes: *certain*. It may meet kernels of which nothing is declared: of each other
    stream those submitted last before it and first after it are asked about, and it is *possibly*
    unordered where it writes to a device while they run. Of work that nothing orders with the copy,
    the times tell whether one had ended when the other began (`accident`) or not (`unordered`);
    where the trace has no such times, it is `unknown`, and so it is where something that the trace
    does not show may have ordered them, or where nobody knows whether they meet.

    Calls that are missing by their numbers may have used any memory: a copy is `unknown` unless it
    is unordered anyhow, or the host waited between it and them. Work that was submitted after the
    trace ends, or, where calls have no such numbers, before it begins, is not met.

    A copy counts for the worst-ordered work that it meets; where all is ordered, for what reads its
    destination and was submitted last before it.

    Returns:
        By `copy_row` (row of `copies`): `place, call_id, process_id, name, direction,
        is_blocking, dst_address, start_ns, end_ns` (of its op, else of its blocking call), `order`
        (`ORDERS`), `evidence` (of an event), `certainty, conflict, buffer, other` (name of the
        other work's first op), `overlap_ns` (how long both ran). Copies in a graph's capture did
        not run and are not there.
    """
    placed = _placed(host, copies, ops)
    uses = memory_uses(host, placed, accesses)
    known = conflicts(uses).with_columns(
        pl.col("buffer").cast(pl.Categorical), certainty=pl.lit("certain", CERTAINTY)
    )
    vague = undeclared(host, placed, accesses)
    lanes = with_done(vague, _ends(host, ops))
    looked_at = pl.concat(lanes)
    met = [known, maybe_met(placed, lanes), missing_work(host, placed)]
    tied = _tied(pl.concat(met, how="diagonal_relaxed"), host, ops, streams)
    others = _work_at(tied["other_place"], host, ops, placed)
    worst = pl.concat(
        _worst(_judged(tied.filter(pl.col("copy_row").is_between(first, last)), placed, others))
        for first, last in _batches(copies.height, tied.height)
    )
    found = placed.join(worst, on="copy_row", how="left").sort("copy_row")
    return found.with_columns(order=_where_nothing_is_bad(found, host, vague, looked_at))


def _batches(copies: int, pairs: int) -> list[tuple[int, int]]:
    """Return the first and last row of copies to judge at once; there is one batch at least."""
    step = max(1, copies * PAIRS_AT_ONCE // max(pairs, 1))
    return [(first, first + step - 1) for first in range(0, max(copies, 1), step)]


def _worst(judged: pl.DataFrame) -> pl.DataFrame:
    # All that is ordered is equally good.
    badness = pl.col("order").to_physical().clip(upper_bound=ORDERS.index("unknown") + 1)
    is_later = pl.col("other_place") > pl.col("copy_place")
    keys = [
        badness,
        "certainty",
        -pl.col("overlap_ns"),
        "conflict",
        is_later,
        -pl.col("other_place"),
    ]
    worst = judged.sort(keys, nulls_last=True).unique("copy_row", keep="first", maintain_order=True)
    columns = ["order", "evidence", "certainty", "conflict", "buffer", "other", "overlap_ns"]
    return worst.select("copy_row", *columns).cast({"other": pl.String, "buffer": pl.String})


def _placed(host: pl.DataFrame, copies: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the copies that ran, with their times; one in a graph has its launch's place."""
    calls = host.drop_nulls("call_id").select(
        "call_id", "place", "kind", "thread_id", call_start_ns="start_ns", call_end_ns="end_ns"
    )
    rows = copies.with_row_index("copy_row").cast({"copy_row": pl.Int64}).drop("stream_id")
    streams = host.select("place", "stream_id")
    found = rows.join(calls, on="call_id").join(streams, on="place")
    copied = ops.select("op_id", *_TIMES).join(rows.select("op_id"), on="op_id", how="semi")
    found = found.hstack(rows_of(found["op_id"], copied.sort("op_id"), "op_id"))
    # Without an op, a blocking copy has run by the time its call returns.
    as_called = pl.col("start_ns").is_null() & pl.col("is_blocking").fill_null(value=False)
    return found.with_columns(
        is_timed_by_call=as_called,
        start_ns=pl.when(as_called).then("call_start_ns").otherwise("start_ns"),
        end_ns=pl.when(as_called).then("call_end_ns").otherwise("end_ns"),
    )


def _ends(host: pl.DataFrame, ops: pl.DataFrame) -> pl.Series:
    """Return by place when the last of its ops ended, null where no op was recorded.

    By place, not by a group of ops each: there are millions.
    """
    last = np.full(host.height, -_NEVER, np.int64)
    calls = host.select("call_id", "place").drop_nulls("call_id").sort("call_id")
    for some in ops.select("call_id", "end_ns").iter_slices(OPS_AT_ONCE):
        places = rows_of(some["call_id"], calls, "call_id")
        place, end_ns = some.select("end_ns").hstack(places).drop_nulls().select("place", "end_ns")
        np.maximum.at(last, place.to_numpy(), end_ns.to_numpy())
    ends = pl.DataFrame({"end_ns": last})
    return ends.select(pl.when(pl.col("end_ns") > -_NEVER).then("end_ns")).to_series()


def _where_nothing_is_bad(
    found: pl.DataFrame, host: pl.DataFrame, vague: pl.DataFrame, looked_at: pl.DataFrame
) -> pl.Series:
    """Return `order` where nothing bad was found: a process may have work that was not looked at.

    That is so of work in streams that are not known, or that are one too many. Nothing can be said
    to have no conflict where the memory of some work is not known. A copy whose own is not known
    was asked about with other such work only, so there must be no other.
    """
    work = host.select(pl.col("process_id").filter(pl.col("kind").is_in(WORK)))
    is_own = rows_of(found["place"], vague.select("place", is_own=pl.lit(value=True)), "place")
    process, own = pl.col("process_id"), pl.col("is_own").fill_null(value=False)
    in_unseen = process.is_in(_with_more(vague, looked_at).implode(), nulls_equal=True)
    not_asked = process.is_in(_with_more(work, vague).implode(), nulls_equal=True)
    never_clear = process.is_in(vague["process_id"].unique().implode(), nulls_equal=True)
    is_found = pl.col("order").is_in(["unordered", "accident"]).fill_null(value=False)
    unknown = pl.lit("unknown", ORDER)
    clear = pl.when(never_clear).then(unknown).otherwise(pl.lit("no-conflict", ORDER))
    order = (
        pl.when((in_unseen | (not_asked & own)) & ~is_found)
        .then(unknown)
        .otherwise(pl.coalesce("order", clear))
    )
    return found.hstack(is_own).select(order.alias("order")).to_series()


def _with_more(frame: pl.DataFrame, others: pl.DataFrame) -> pl.Series:
    """Return the processes that have more rows in `frame` than in `others`."""
    count, num_others = (some["process_id"].value_counts() for some in (frame, others))
    both = count.join(num_others, on="process_id", how="left", nulls_equal=True, suffix="_of_other")
    return both.filter(pl.col("count") > pl.col("count_of_other").fill_null(0))["process_id"]


def _tied(
    met: pl.DataFrame, host: pl.DataFrame, ops: pl.DataFrame, streams: pl.DataFrame
) -> pl.DataFrame:
    """Add `tie`; calls that are missing count where they are not surely in order."""
    is_missing = (pl.col("other_stream_id") == NO_STREAM).fill_null(value=False)
    stream = pl.when(pl.col("kind") == "lost").then(pl.lit(NO_STREAM, pl.Int32))
    standing_in = host.with_columns(stream_id=stream.otherwise("stream_id"))
    tied = met.with_columns(tie=ties(standing_in, _pairs(met), ops, streams))
    # Of several threads any may have made a call that is missing.
    threads = host.group_by("process_id").agg(threads=pl.n_unique("thread_id"))
    many = host.join(threads.filter(pl.col("threads") > 1), on="process_id", how="semi")["place"]
    is_after = pl.col("other_place") > pl.col("copy_place")
    is_anyones = is_after & pl.col("copy_place").is_in(many.implode())
    is_done = (pl.col("tie") == Tie.HOST.name.lower()).fill_null(value=False) & ~is_anyones
    left = tied.filter(~(is_missing & is_done))
    unsure = pl.lit(Tie.ASSUMED.name.lower(), tied.schema["tie"])
    return left.with_columns(tie=pl.when(is_missing).then(unsure).otherwise("tie"))


def _pairs(met: pl.DataFrame) -> pl.DataFrame:
    is_first = pl.col("copy_place") < pl.col("other_place")
    return met.select(
        earlier_place=pl.min_horizontal("copy_place", "other_place").cast(pl.Int32),
        later_place=pl.max_horizontal("copy_place", "other_place").cast(pl.Int32),
        earlier_stream_id=pl.when(is_first).then("copy_stream_id").otherwise("other_stream_id"),
    )


def _judged(tied: pl.DataFrame, placed: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """Add `order, evidence, conflict, other, overlap_ns`."""
    own = placed.select("copy_row", "is_timed_by_call", *_TIMES).sort("copy_row")
    timed = (
        tied.cast({"tie": pl.String})
        .hstack(rows_of(tied["copy_row"], own, "copy_row"))
        .join(others, on="other_place", how="left", maintain_order="left")
    )
    is_first = pl.col("copy_place") < pl.col("other_place")
    # A blocking copy without an op may have run at any moment of its call.
    begun = pl.when("is_timed_by_call").then("end_ns").otherwise("start_ns")
    over = (
        pl.when(is_first)
        .then(pl.col("end_ns") <= pl.col("other_start_ns"))
        .otherwise(pl.col("other_end_ns") <= begun)
    )
    by_time = pl.when(over).then(pl.lit("accident")).when(~over).then(pl.lit("unordered"))
    is_free = (pl.col("tie") == Tie.NONE.name.lower()) & ~pl.col("may_be_ordered")
    order = (
        pl.when(is_free)
        .then(by_time)
        .otherwise(
            pl.col("tie").replace_strict(_ORDER_OF_TIE, default=None, return_dtype=pl.String)
        )
    )
    writes = pl.col("copy_mode") == "write"
    conflict = (
        pl.when(~writes)
        .then(pl.lit("reads-written"))
        .otherwise(pl.format("overwrites-{}", "other_mode"))
    )
    shared = pl.min_horizontal("end_ns", "other_end_ns") - pl.max_horizontal(
        "start_ns", "other_start_ns"
    )
    judged = timed.with_columns(order=order.fill_null("unknown").cast(ORDER))
    is_found = pl.col("order").is_in(["unordered", "accident"])
    return judged.with_columns(
        certainty=pl.when(is_found).then("certainty"),
        conflict=conflict.cast(CONFLICT),
        evidence=pl.when(pl.col("order") == "event").then(
            pl.col("tie").str.strip_suffix("-event").cast(EVIDENCE)
        ),
        overlap_ns=pl.when(pl.col("order") == "unordered").then(shared.clip(lower_bound=0)),
    )


def _work_at(
    places: pl.Series, host: pl.DataFrame, ops: pl.DataFrame, placed: pl.DataFrame
) -> pl.DataFrame:
    """Return `other_place, other, other_start_ns, other_end_ns` of what was submitted there."""
    asked = host.select(pl.col("call_id", "place").gather(places.drop_nulls().unique()))
    asked = asked.drop_nulls("call_id").sort("call_id")
    there = rows_of(ops["call_id"], asked, "call_id")["place"]
    done = (
        ops.select(other_place=there, other="name", start_ns="start_ns", end_ns="end_ns")
        .drop_nulls("other_place")
        .group_by("other_place", maintain_order=True)
        .agg(
            pl.col("other").first(),
            other_start_ns=pl.col("start_ns").min(),
            other_end_ns=pl.col("end_ns").max(),
        )
    )
    called = placed.filter("is_timed_by_call").select(
        other_place="place",
        other_start_ns="start_ns",
        other_end_ns="end_ns",
    )
    return pl.concat([done, called.unique("other_place")], how="diagonal_relaxed").unique(
        "other_place", keep="first", maintain_order=True
    )
