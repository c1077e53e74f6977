"""When a host that a call had held got ahead of the device again."""

import polars as pl

from tracekit.idle_time.gaps import BEFORE_EVERYTHING

_LANE = ["process_id", "device_id"]

# A call that waits for the device takes the lead that the host had: the work that the device had
# still to do when the call began. A few small kernels behind each other, which any server launches
# before it prepares, are no lead beside that. All of it is not asked for: a host that runs a step
# ahead has about as much again, a little more or less.
MIN_REGAINED_SHARE = 0.5
# A lead that counts after any wait, so that one long wait, as at the end of a warm-up, is not to
# blame for all that comes after it. Launches lead by some 10 µs, what is prepared takes some 100.
ENOUGH_LEAD_NS = 1_000_000


def leads(gaps: pl.DataFrame, submitted: pl.DataFrame) -> pl.DataFrame:
    """Return when the host first was ahead of the device again after each call that had held it.

    Its lead, when a call returns, is how long the device still has to run ops of earlier calls, on
    whatever queue, if both calls began after the return of the one that had held it. It is ahead
    again when that is `MIN_REGAINED_SHARE` or more of the lead it had when it was held, and in any
    case with `ENOUGH_LEAD_NS`. So the longer it was held, the more it takes to say that another
    reason made it late.

    Work from before the return is no lead, however long it lasts: the host did nothing for it
    since. Calls of all threads count, but only what holds the thread of the gap ends a lead.

    Args:
        gaps: `process_id, device_id, thread_id, call_start_ns` of the op after each gap; and
            `owner_call_id, owner_start_ns, owner_end_ns, released_ns` of the last call that had
            held its thread.
        submitted: `gaps.submitted_ops`.

    Returns:
        `device_id, owner_call_id, ahead_ns`, the return of the first call that was ahead; no row
        where none was before the last gap. Cost: one pass over the ops of a device for each thread
        that has gaps there, from its first owner to its last gap.
    """
    spans = gaps.group_by(*_LANE, "thread_id", "owner_call_id", "owner_end_ns").agg(
        last_ns=pl.col("call_start_ns").max(),
        lost_ns=(pl.col("released_ns") - pl.col("owner_start_ns")).first(),
    )
    found = [spans.clear().select("device_id", "owner_call_id", ahead_ns="last_ns")]
    work = submitted if spans.height else submitted.clear()
    launches = (
        work.select(*_LANE, "call_start_ns", "call_end_ns", "end_ns")
        .drop_nulls("call_start_ns")
        .sort("call_start_ns")
        .partition_by(_LANE, as_dict=True, include_key=False)
    )
    by_thread = spans.partition_by(*_LANE, "thread_id", as_dict=True)
    for (process, device, _), some in by_thread.items():
        found.append(_first_leads(some.sort("owner_end_ns"), launches[process, device]))
    return pl.concat(found)


def _first_leads(spans: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Return the leads of one thread over one device, from what was launched there, in order."""
    span, start = pl.col("owner_end_ns"), pl.col("call_start_ns")
    inside = (
        launches.filter(start.is_between(spans["owner_end_ns"][0], spans["last_ns"].max()))
        .join_asof(
            spans.select("device_id", "owner_call_id", "owner_end_ns", "last_ns", "lost_ns"),
            left_on="call_start_ns",
            right_on="owner_end_ns",
            coalesce=False,
            check_sortedness=False,
        )
        .filter(start < pl.col("last_ns"))
    )
    # Until when earlier calls of the span keep the device busy. Ops of one call, as the nodes of a
    # graph, are no lead over each other: all of them see what the first sees.
    reach = pl.col("end_ns").cum_max().over(span.set_sorted()).shift(1)
    earlier = pl.when(span == span.shift(1)).then(reach).otherwise(BEFORE_EVERYTHING)
    busy_until = pl.when(start != start.shift(1)).then(earlier).forward_fill()
    lead = busy_until - pl.col("call_end_ns")
    enough = (MIN_REGAINED_SHARE * pl.col("lost_ns")).clip(upper_bound=ENOUGH_LEAD_NS)
    return (
        inside.filter(lead >= enough)
        .group_by("device_id", "owner_call_id")
        .agg(ahead_ns=pl.col("call_end_ns").min())
    )
