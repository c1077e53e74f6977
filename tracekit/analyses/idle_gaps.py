"""idle-gaps: a ledger in which every nanosecond of a device's idle time has exactly one cause.

A gap is the time between ops of one device, over all its queues. The op that ends it decides:

- `dispatch`: it belongs to a graph launch that had begun before the gap.
- Until its call returned, the host was behind. `host-blocked` when, on the thread that issued it, a
  blocking call was released by device work and the host has not got ahead of the device since: that
  call owns the time, split into `blocked` (it still waited, for other work), `wake-up` (device done
  → call returns), `exposed` (host work after it) and `launch`. The call usually ends before or at
  the start of the gap, or while work from before it still runs. The host is ahead again once it has
  submitted an op while the device still had others to run, submitted after that return, too, for
  half as long as the call had taken or a millisecond; and once the device has idled for as long as
  the call had taken, what comes after is not its either.
  Without such a call: `host-late`. Where the thread showed neither range nor call for a millisecond
  or more, though it has ranges elsewhere: `starved`, whoever came before.
- From the return of its call on, it was submitted: `queue-wait` while its stream waited for another
  stream's work (`pending`) and up to 0.1 ms after (`hand-over`), else `launch-latency`; but
  `unknown` if its stream was made to wait and the trace does not say for what.
- `edge`: at the ends of the window, and before ops queued before recording began.
- `unknown`: no host call is recorded for it, either; a call that may have held the host is lost;
  or an op that may have run in it is. Said, not guessed.

It cannot tell a thread that waits for another thread from one that works: a scheduler that blocks
for an engine thread leaves `host-late` behind. Nor can it tell what delays a submitted op where the
trace has no waits.
"""

import polars as pl

from tracekit.analyses import Analysis
from tracekit.api_calls import leads_over_calls, untold_waits
from tracekit.idle_time.pieces import CAUSES, PARTS, idle_pieces
from tracekit.idle_time.unseen import unseen
from tracekit.idle_time.wait_kinds import described
from tracekit.tables import Column, Table, enum_column, id_column, text_column, time_column
from tracekit.tables.notes import Note, Severity
from tracekit.units import Unit, format_number

IDLE_GAPS = Table(
    "idle-gaps",
    "one cause of idle time of one device, with its owner and what the host was doing",
    (
        id_column("device_id", "device", "The device.", narrow=True),
        enum_column("cause", CAUSES, "Why the device had nothing to run."),
        enum_column("part", PARTS, "Stage within the cause."),
        text_column("owner", "The blocking call that owns the gap."),
        text_column("owner_marker", "Innermost marker around the owning call."),
        text_column("owner_caller", "Innermost Python frame, else operator, around that call."),
        text_column("range", "What the host was doing meanwhile: marker, else operator."),
        Column("gaps", pl.Int64(), "Gaps with such a piece.", Unit.COUNT),
        Column("idle_ns", pl.Int64(), "Idle time.", Unit.DURATION),
        Column("idle_share", pl.Float64(), "Share of the device's window.", Unit.SHARE),
        Column("longest_ns", pl.Int64(), "Longest piece.", Unit.DURATION),
        time_column("longest_start_ns", "Where the longest piece starts."),
    ),
    answers=("cause", "owner", "range", "idle_ns", "idle_share"),
)
_GROUP = ["device_id", "cause", "part", "owner", "owner_marker", "owner_caller", "range"]


def idle_gaps(
    ops: pl.DataFrame,
    calls: pl.DataFrame,
    copies: pl.DataFrame,
    waits: pl.DataFrame,
    marks: pl.DataFrame,
    ranges: pl.DataFrame,
    windows: pl.DataFrame,
) -> pl.DataFrame:
    """Return the ledger summed by device, cause, part, owner and range, largest first.

    The sum of `idle_ns` of a device is its window minus its busy time, exactly. Cost: a few sorts
    and joins of ops with calls.
    """
    tables = (ops, calls, copies, waits, marks, ranges, windows)
    summed = pl.concat([_summed(pieces) for pieces in idle_pieces(*tables)])
    owners = described(summed["owner_call_id"], calls, ranges).rename(
        {"call": "owner", "marker": "owner_marker", "caller": "owner_caller"}
    )
    spans = windows.select("device_id", window_ns=pl.col("end_ns") - pl.col("start_ns"))
    ledger = (
        summed.join(owners, left_on="owner_call_id", right_on="call_id", how="left")
        .sort("longest_ns", "longest_start_ns", descending=[True, False])
        .group_by(_GROUP, maintain_order=True)
        .agg(
            pl.col("gaps").sum(),
            pl.col("idle_ns").sum(),
            pl.col("longest_ns", "longest_start_ns").first(),
        )
        .join(spans, on="device_id", how="left", maintain_order="left")
        .with_columns(idle_share=pl.col("idle_ns") / pl.col("window_ns"))
        .sort("device_id", "idle_ns", descending=[False, True], maintain_order=True)
    )
    return IDLE_GAPS.conform(ledger.drop("window_ns"))


def _summed(pieces: pl.DataFrame) -> pl.DataFrame:
    length = pl.col("end_ns") - pl.col("start_ns")
    return (
        pieces.with_columns(length_ns=length)
        .group_by("device_id", "cause", "part", "owner_call_id", "range")
        .agg(
            gaps=pl.col("op_id").n_unique().cast(pl.Int64),
            idle_ns=pl.col("length_ns").sum(),
            longest_ns=pl.col("length_ns").max(),
            longest_start_ns=pl.col("start_ns").get(pl.col("length_ns").arg_max()),
        )
    )


def caveats(
    ops: pl.DataFrame,
    calls: pl.DataFrame,
    waits: pl.DataFrame,
    marks: pl.DataFrame,
    ranges: pl.DataFrame,
) -> list[Note]:
    """Return what the ledger cannot tell on this trace."""
    if ops.is_empty():
        return []
    notes = []
    if calls.is_empty():
        message = (
            "No host calls were recorded, so idle time has no cause but `unknown`; record again "
            "with the runtime API trace on (rocprofv3: --hip-runtime-trace)"
        )
        return [Note("idle-gaps.no-calls", Severity.NOTICE, message)]
    if untold := untold_waits(calls, waits).height:
        message = (
            "Streams were made to wait for events, but the trace does not say for which: idle time "
            "before what they may have held is unknown"
        )
        notes.append(Note("idle-gaps.waits-unknown", Severity.NOTICE, message, untold))
    if lost := unseen(ops, calls, marks, ranges).calls.height:
        message = (
            "Host calls that may have waited for the device are lost: idle time for which one of "
            "them may be to blame is unknown"
        )
        notes.append(Note("idle-gaps.calls-lost", Severity.NOTICE, message, lost))
    if ranges.is_empty():
        message = (
            "No ranges were recorded: idle time behind the host cannot be named further, and "
            "`host-late` and `host-blocked` may contain time in which there was nothing to do"
        )
        notes.append(Note("idle-gaps.no-ranges", Severity.INFO, message))
    leads = leads_over_calls(ops, calls).drop_nulls()
    early = leads.filter(leads > 0)
    if early.len():
        largest = format_number(early.sort()[-1], Unit.DURATION)
        message = (
            f"Ops start before the call that launched them began, by up to {largest}: host and "
            "device clocks differ by that much, and gaps shorter than that may have another cause"
        )
        notes.append(Note("idle-gaps.clock-skew", Severity.NOTICE, message, early.len()))
    return notes


ANALYSIS = Analysis(
    name="idle-gaps",
    question="Why was each device idle, and who owns it?",
    table=IDLE_GAPS,
    compute=idle_gaps,
    needs=("ops",),
    caveats=caveats,
)
