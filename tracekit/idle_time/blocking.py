"""Which host calls waited for the device, and whether a gap is the price of one.

A call that could block did block only if work it waits for was unfinished when it began and ended
while it lasted. What it waits for is known from its event, stream, device or copy. Where that does
not explain a call of at least `MIN_UNNAMED_WAIT_NS`, the last op that ended during it does, since a
call that does not wait returns in a few microseconds.
"""

import polars as pl

from tracekit.api_calls import BLOCKING_KINDS
from tracekit.idle_time.gaps import BEFORE_EVERYTHING, ends_gap, submitted_ops
from tracekit.idle_time.leads import leads
from tracekit.idle_time.unseen import Unseen
from tracekit.intervals import covered_ns, union
from tracekit.intervals.matching import nearest
from tracekit.lost_calls import MIN_UNNAMED_WAIT_NS
from tracekit.remembered import remembered
from tracekit.tables.rows import rows_of

# Host and device clocks are matched to a few microseconds; a call may seem to return just before
# the work that released it. 10 µs is far below the waits that matter.
CLOCK_TOLERANCE_NS = 10_000

_CAN_BLOCK = (*BLOCKING_KINDS, "copy", "free")


@remembered
def blocking_calls(ops: pl.DataFrame, calls: pl.DataFrame, copies: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that device work released, with when that work ended.

    Args:
        ops: The `ops` table.
        calls: The `calls` table.
        copies: The `copies` table, for which copies block.

    Returns:
        `call_id, process_id, thread_id, start_ns, end_ns, released_ns`, by end.
    """
    submitted = submitted_ops(ops, calls)
    candidates = calls.filter(pl.col("kind").is_in(_CAN_BLOCK))
    kinds = candidates.partition_by("kind", as_dict=True)
    ends = _ends_by_submission(submitted, calls)
    awaited = {
        "copy": lambda some: _own_copies(some, copies, submitted, ends),
        "device_sync": lambda some: _some_device(some, ends),
        "stream_sync": lambda some: _latest_end(some, "start_ns", ends, ["stream_id"]),
        "event_sync": lambda some: _recorded_work(some, calls, ends),
    }
    columns = ["call_id", "process_id", "thread_id", "start_ns", "end_ns"]
    waited = (pl.col("start_ns") < pl.col("released_ns")) & (
        pl.col("released_ns") <= pl.col("end_ns") + CLOCK_TOLERANCE_NS
    )
    nothing = candidates.clear().select(*columns, released_ns=pl.lit(None, pl.Int64))
    named = pl.concat(
        [nothing]
        + [
            awaited[k](some).select(*columns, "released_ns")
            for (k,), some in kinds.items()
            if k in awaited
        ]
    ).filter(waited)
    # What the trace names need not be all that a call waits for: a branch of a graph on another
    # stream, the null stream's rules, an event nobody recorded.
    others = candidates.filter(pl.col("kind") != "copy").join(named, on="call_id", how="anti")
    lasting = _ended_during(others, submitted).select(*columns, "released_ns").filter(waited)
    return pl.concat([named, lasting]).sort("end_ns")


def _some_device(syncs: pl.DataFrame, ends: pl.DataFrame) -> pl.DataFrame:
    """A device sync waits for one device; the call does not say which, so each is tried."""
    parts = [syncs.clear().with_columns(released_ns=pl.lit(None, pl.Int64))]
    for own in ends.partition_by("device_id"):
        found = _latest_end(syncs, "start_ns", own, [])
        parts.append(found.filter(pl.col("released_ns") <= pl.col("end_ns") + CLOCK_TOLERANCE_NS))
    tried = pl.concat([part.select(parts[0].columns) for part in parts])
    return tried.sort("released_ns", nulls_last=True).unique(
        "call_id", keep="last", maintain_order=True
    )


def _own_copies(
    calls: pl.DataFrame, copies: pl.DataFrame, submitted: pl.DataFrame, ends: pl.DataFrame
) -> pl.DataFrame:
    """A copy call waits for its own op; one known to block, without an op, for earlier work.

    An asynchronous copy on an idle device may be done before its call returns without having held
    the host. So a copy that is not known to block counts only if the device still had earlier work
    when the call began, and one between page-locked memory and a device never does. Nor does one
    that ended after its call: clocks may differ by more than a small copy takes, so that any copy
    beside another stream's work would seem to have waited for it.
    """
    done = (
        submitted.filter(pl.col("call_id").is_in(calls["call_id"].implode()))
        .group_by("call_id")
        .agg(copied_ns=pl.col("end_ns").max())
    )
    how = copies.group_by("call_id").agg(pl.col("is_blocking").any(), pl.col("is_pinned").any())
    own = (
        calls.join(done, on="call_id", how="left")
        .join(how, on="call_id", how="left")
        .with_columns(before_ns=pl.col("start_ns") - 1)
    )
    blocks = pl.col("is_blocking").fill_null(value=False)
    had_work = (pl.col("released_ns") > pl.col("start_ns")).fill_null(value=False)
    is_done = pl.col("copied_ns") <= pl.col("end_ns")
    may_block = had_work & is_done & ~pl.col("is_pinned").fill_null(value=False)
    is_own = pl.col("copied_ns").is_not_null() & (blocks | may_block)
    released = pl.when(is_own).then("copied_ns").when(blocks).then("released_ns")
    return _latest_end(own, "before_ns", ends, []).with_columns(released_ns=released)


def _ends_by_submission(submitted: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return process, device, stream, `at` and `end_ns` of the ops as they were submitted."""
    # An op whose call was not recorded was submitted before whatever was, unless its call is lost:
    # then before the call of the next higher number.
    found = submitted.select("process_id", "device_id", "stream_id", "end_ns", at="call_start_ns")
    is_lost = submitted["call_start_ns"].is_null() & (
        submitted["is_queued_before"].fill_null(value=True).not_()
    )
    if is_lost.any():
        number = "correlation_id"
        later = calls.select("process_id", next_number=number, next_ns="start_ns").drop_nulls()
        lost = submitted.filter(is_lost).select("op_id", "process_id", number).sort(number)
        following = nearest(
            lost,
            later.sort("next_number"),
            left_on=number,
            right_on="next_number",
            by=["process_id"],
            strategy="forward",
        )
        times = following.select("op_id", "next_ns").sort("op_id")
        next_ns = rows_of(submitted["op_id"], times, "op_id")["next_ns"]
        found = found.with_columns(pl.coalesce("at", next_ns).alias("at"))
    return found.with_columns(pl.col("at").fill_null(BEFORE_EVERYTHING)).sort("at")


def _latest_end(
    frame: pl.DataFrame, moment: str, ends: pl.DataFrame, by: list[str]
) -> pl.DataFrame:
    """Return `frame` with `released_ns`: the last end of all that was submitted by `moment`."""
    group = ["process_id", *by]
    latest = ends.select(*group, "at", released_ns=pl.col("end_ns").cum_max().over(group))
    return nearest(frame.sort(moment), latest, left_on=moment, right_on="at", by=group)


def _recorded_work(events: pl.DataFrame, calls: pl.DataFrame, ends: pl.DataFrame) -> pl.DataFrame:
    """An event sync waits for what its stream had been given when the event was last recorded."""
    records = (
        calls.filter(pl.col("kind") == "event_record")
        .drop_nulls(["event_key", "stream_id"])
        .select("process_id", "event_key", "stream_id", recorded_ns="start_ns")
        .sort("recorded_ns")
    )
    paired = nearest(
        events.drop("stream_id").sort("start_ns"),
        records,
        left_on="start_ns",
        right_on="recorded_ns",
        by=["process_id", "event_key"],
    )
    return _latest_end(paired.drop_nulls("recorded_ns"), "recorded_ns", ends, ["stream_id"])


def _ended_during(syncs: pl.DataFrame, submitted: pl.DataFrame) -> pl.DataFrame:
    """Return the long calls with the last op end before they returned."""
    lasting = syncs.filter(pl.col("end_ns") - pl.col("start_ns") >= MIN_UNNAMED_WAIT_NS)
    some = submitted if lasting.height else submitted.clear()
    ends = some.select("process_id", released_ns="end_ns").sort("released_ns")
    return nearest(
        lasting.sort("end_ns"), ends, left_on="end_ns", right_on="released_ns", by=["process_id"]
    )


def gap_owners(
    submitted: pl.DataFrame, calls: pl.DataFrame, blockers: pl.DataFrame, unseen: Unseen
) -> pl.DataFrame:
    """Return the blocking call that owns the gap before an op, for the gaps that have one.

    The walk back: on the thread that issued the op after the gap, the last call that device work
    released. What it took from the host is the time from its start to that release. It owns the gap
    unless, since it returned,

    - the host has got ahead of the device again (`leads`): then it had caught up, and lost its lead
      for another reason; or
    - the device has idled behind this thread for as long as what was taken: without that call the
      host would have been so much further ahead and no more. So a copy that takes 25 µs owns one
      gap, not all those of a host that launches too slowly for a second after it.

    A call that is not in the trace may have held its thread, or any, for any time; so may a call
    that waits, where an op is missing that it may have waited for. An op that is missing may have
    been the host's lead. Where one of these is the last, nobody knows who owns the gap.

    Args:
        submitted: `gaps.submitted_ops`.
        calls: The `calls` table, for the threads.
        blockers: `blocking_calls`.
        unseen: What is known to be missing.

    Returns:
        `op_id, owner_call_id` (below 0: not known), `owner_end_ns, released_ns`, by `op_id`; only
        gaps whose op had not been submitted when they began.
    """
    found = _last_blocks(submitted, calls, with_unknown(blockers, calls, unseen))
    owner = ["device_id", "owner_call_id"]
    caught_up = (pl.col("ahead_ns") <= pl.col("call_start_ns")).fill_null(value=False)
    idled_ns = pl.col("behind_ns").cum_sum().over(owner, order_by="start_ns") - pl.col("behind_ns")
    is_paid = idled_ns >= pl.col("released_ns") - pl.col("owner_start_ns")
    return (
        found.with_columns(is_paid=is_paid)
        .join(leads(found, submitted), on=owner, how="left")
        .filter(~caught_up & ~pl.col("is_paid"))
        .select("op_id", "owner_call_id", "owner_end_ns", "released_ns")
        .sort("op_id")
    )


def with_unknown(blockers: pl.DataFrame, calls: pl.DataFrame, unseen: Unseen) -> pl.DataFrame:
    """Add what may have held a thread, as calls without known begin and with an id below 0.

    Args:
        blockers: `blocking_calls`. Those that a missing op may have held instead are left out.
        calls: The `calls` table, for the threads.
        unseen: What is known to be missing.
    """
    unsure = _beside_lost_ops(calls, unseen)
    lost = pl.concat(
        part.select(unseen.calls.columns) for part in (unseen.calls, unseen.launches, unsure)
    )
    known = blockers.drop_nulls("thread_id").join(unsure, on="call_id", how="anti")
    if lost.is_empty():
        return known
    somewhere = pl.col("thread_id").is_null()
    threads = calls.select("process_id", "thread_id").drop_nulls().unique()
    anywhere = lost.filter(somewhere).drop("thread_id").join(threads, on="process_id")
    held = pl.concat([lost.filter(~somewhere), anywhere.select(lost.columns)])
    return pl.concat(
        [
            known,
            held.with_row_index("row")
            .select(
                "process_id",
                "thread_id",
                "end_ns",
                call_id=-1 - pl.col("row").cast(pl.Int64),
                start_ns=pl.lit(BEFORE_EVERYTHING),
                released_ns="end_ns",
            )
            .select(known.columns),
        ]
    )


def _beside_lost_ops(calls: pl.DataFrame, unseen: Unseen) -> pl.DataFrame:
    """Return the calls that an op may have held, and for how long, that is missing."""
    if unseen.spans.is_empty():
        return calls.clear()
    waiting = calls.filter(pl.col("kind").is_in(_CAN_BLOCK)).with_columns(all=pl.lit(0))
    spans = union(unseen.spans.select("start_ns", "end_ns", all=pl.lit(0)), ["all"])
    return waiting.filter(covered_ns(waiting, spans, ["all"]) > 0)


def _last_blocks(
    submitted: pl.DataFrame, calls: pl.DataFrame, blockers: pl.DataFrame
) -> pl.DataFrame:
    """Return the gaps behind the host, each with the last call that had blocked its thread."""
    behind = ends_gap() & ~pl.col("is_within_graph") & (pl.col("call_end_ns") > pl.col("free_ns"))
    some = submitted if blockers.height else submitted.clear()
    asked = some.filter(behind).select(
        "op_id",
        "process_id",
        "device_id",
        "call_id",
        "call_start_ns",
        "start_ns",
        behind_ns=pl.min_horizontal("call_end_ns", "start_ns") - pl.col("free_ns"),
    )
    threads = calls.select("call_id", "thread_id")
    asked = asked.hstack(rows_of(asked["call_id"], threads, "call_id")).drop("call_id")
    owners = blockers.select(
        "process_id",
        "thread_id",
        "released_ns",
        owner_call_id="call_id",
        owner_start_ns="start_ns",
        owner_end_ns="end_ns",
    )
    return nearest(
        asked.sort("call_start_ns"),
        owners.sort("owner_end_ns"),
        left_on="call_start_ns",
        right_on="owner_end_ns",
        by=["process_id", "thread_id"],
    ).drop_nulls("owner_call_id")
