"""idle-gaps: a ledger in which every nanosecond of a device's idle time has exactly one cause.

A gap is the time between ops of one device, over all its queues. The op that ends it decides:

- `dispatch`: it belongs to a graph launch that had begun before the gap.
- Until its call returned, the host was behind. `host-blocked` when, on the thread that issued it, a
  blocking call was released by device work and the host has not got ahead of the device since: that
  call owns the time, split into `blocked` (it still waited, for other work), `wake-up` (device done
  → call returns), `exposed` (host work after it) and `launch`. The call usually ends before or at
  the start of the gap, or while work from before it still runs. The host is ahead again once it has
  submitted an op while the device had another to run that was submitted after that return, too.
  Without such a call: `host-late`. Where the thread showed neither range nor call for a millisecond
  or more, though it has ranges elsewhere: `starved`, whoever came before.
- From the return of its call on, it was submitted: `queue-wait` while its stream waited for another
  stream's work (`pending`) and up to 0.1 ms after (`hand-over`), else `launch-latency`.
- `edge`: at the ends of the window, and before ops queued before recording began.
- `unknown`: no host call is recorded for it. Said, not guessed.

It cannot tell a thread that waits for another thread from one that works: a scheduler that blocks
for an engine thread leaves `host-late` behind. Nor can it tell what delays a submitted op where the
trace has no waits.
"""

import polars as pl

from tracekit.analyses import Analysis
from tracekit.api_calls import call_kind
from tracekit.findings import Finding, FindingSeverity
from tracekit.idle_time.pieces import CAUSES, PARTS, idle_pieces
from tracekit.idle_time.under import innermost_around, without_counters
from tracekit.tables import Column, Table, enum_column, id_column, text_column, time_column
from tracekit.tables.notes import Note, Severity
from tracekit.tables.rows import rows_of
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
)
_GROUP = ["device_id", "cause", "part", "owner", "owner_marker", "owner_caller", "range"]

# Below this share of the window an owner is not worth acting on: it is less than what two runs of
# one server differ by.
FINDING_SHARE = 0.05


def idle_gaps(
    ops: pl.DataFrame,
    calls: pl.DataFrame,
    copies: pl.DataFrame,
    waits: pl.DataFrame,
    ranges: pl.DataFrame,
    windows: pl.DataFrame,
) -> pl.DataFrame:
    """Return the ledger summed by device, cause, part, owner and range, largest first.

    The sum of `idle_ns` of a device is its window minus its busy time, exactly. Cost: a few sorts
    and joins of ops with calls.
    """
    summed = pl.concat(
        [_summed(pieces) for pieces in idle_pieces(ops, calls, copies, waits, ranges, windows)]
    )
    owners = calls.join(
        summed.select(call_id="owner_call_id").unique(), on="call_id", how="semi"
    ).select("call_id", "process_id", "thread_id", "start_ns", owner=pl.col("name").cast(pl.String))
    spans = windows.select("device_id", window_ns=pl.col("end_ns") - pl.col("start_ns"))
    ledger = (
        summed.join(
            _described(owners, ranges), left_on="owner_call_id", right_on="call_id", how="left"
        )
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


def _described(owners: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    described = owners.select("call_id", "owner")
    for column, kinds in (
        ("owner_marker", ["marker"]),
        ("frame", ["frame"]),
        ("operator", ["operator"]),
    ):
        found = innermost_around(owners, ranges, kinds).rename({"text": column})
        described = described.join(found, on="call_id", how="left")
    return described.select(
        "call_id",
        "owner",
        without_counters(pl.col("owner_marker")),
        owner_caller=pl.coalesce("frame", "operator"),
    )


def findings(result: pl.DataFrame) -> list[Finding]:
    """Return one finding per blocking call that owns a large share of a device's window."""
    owners = (
        result.filter(pl.col("cause") == "host-blocked")
        .group_by("device_id", "owner", "owner_marker", "owner_caller", maintain_order=True)
        .agg(
            pl.col("idle_ns").sum(),
            pl.col("idle_share").sum(),
            pl.col("gaps").max(),
            pl.col("longest_ns").first(),
            pl.col("longest_start_ns").first(),
            exposed_ns=pl.col("idle_ns").filter(pl.col("part") == "exposed").sum(),
        )
        .filter(pl.col("idle_share") >= FINDING_SHARE)
    )
    return [_host_blocked(**row) for row in owners.iter_rows(named=True)]


def _host_blocked(  # noqa: PLR0913  one parameter per column of the row
    *,
    device_id: int,
    owner: str,
    owner_marker: str | None,
    owner_caller: str | None,
    idle_ns: int,
    idle_share: float,
    gaps: int,
    longest_ns: int,
    longest_start_ns: int,
    exposed_ns: int,
) -> Finding:
    place = owner_caller or owner_marker
    where = f"{owner} in {place!r}" if place else owner
    idle = format_number(idle_ns, Unit.DURATION)
    share = format_number(idle_share, Unit.SHARE)
    return Finding(
        code=f"host-blocked.{call_kind(owner).replace('_', '-')}",
        severity=FindingSeverity.WARNING,
        message=(
            f"Device {device_id} was idle {idle} ({share} of the window) because {where} held the "
            f"host until the device was done, and the next work was prepared only afterwards"
        ),
        evidence={
            "device_id": device_id,
            "call": owner,
            "marker": owner_marker,
            "caller": owner_caller,
            "idle_ns": idle_ns,
            "idle_share": idle_share,
            "gaps": gaps,
            "exposed_ns": exposed_ns,
            "longest_ns": longest_ns,
            "longest_start_ns": longest_start_ns,
        },
        advice=(
            "Let the stream wait instead of the host (a wait in the stream that needs the result), "
            "or prepare the next step before this call; record again and compare this ledger: "
            "tracekit report TRACE --only idle-gaps"
        ),
        span_ns=(longest_start_ns, longest_start_ns + longest_ns),
    )


def caveats(
    ops: pl.DataFrame, calls: pl.DataFrame, waits: pl.DataFrame, ranges: pl.DataFrame
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
    asked = int((calls["kind"] == "event_wait").sum())
    if waits.is_empty() and asked:
        message = (
            "Streams were made to wait for events, but the trace does not say for which: what is "
            "called launch-latency may be queue-wait"
        )
        notes.append(Note("idle-gaps.waits-unknown", Severity.NOTICE, message, asked))
    if ranges.is_empty():
        message = (
            "No ranges were recorded: idle time behind the host cannot be named further, and "
            "`host-late` may contain time in which there was nothing to do"
        )
        notes.append(Note("idle-gaps.no-ranges", Severity.INFO, message))
    early = _ops_before_their_call(ops, calls)
    if early.height:
        largest = format_number(int(early.max().item()), Unit.DURATION)
        message = (
            f"Ops start before the call that launched them began, by up to {largest}: host and "
            "device clocks differ by that much, and gaps shorter than that may have another cause"
        )
        notes.append(Note("idle-gaps.clock-skew", Severity.NOTICE, message, early.height))
    return notes


def _ops_before_their_call(ops: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    called = rows_of(ops["call_id"], calls.select("call_id", "start_ns"), "call_id")["start_ns"]
    lead = (called - ops["start_ns"]).alias("lead_ns")
    return lead.filter(lead > 0).to_frame()


ANALYSIS = Analysis(
    name="idle-gaps",
    question="Why was each device idle, and who owns it?",
    table=IDLE_GAPS,
    compute=idle_gaps,
    needs=("ops",),
    findings=findings,
    caveats=caveats,
)
