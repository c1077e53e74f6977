"""The ledger against an oracle that decides every instant by itself, with plain loops."""

from dataclasses import dataclass

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.analyses.idle_gaps.blocking import CLOCK_TOLERANCE_NS, MIN_UNNAMED_WAIT_NS
from tracekit.analyses.idle_gaps.pieces import idle_pieces
from tracekit.tables.catalog import TABLES
from tracekit.tables.identity import WINDOWS

# One instant of the oracle. Longer than the clock tolerance, so that the tolerance cannot hide an
# order, and so short that two make a wait long enough to count without a name.
TICK_NS = 20_000
assert CLOCK_TOLERANCE_NS < TICK_NS <= MIN_UNNAMED_WAIT_NS == 2 * TICK_NS


@dataclass(frozen=True)
class Op:
    op_id: int
    stream: int
    start: int
    end: int
    call: int | None


@dataclass(frozen=True)
class Call:
    call_id: int
    thread: int
    kind: str
    start: int
    end: int
    stream: int | None


@st.composite
def programs(draw):
    """Calls of two threads, one after another on each, and an op after the start of each launch."""
    calls, ops = [], []
    for thread in range(draw(st.integers(1, 2))):
        now = draw(st.integers(0, 4))
        for _ in range(draw(st.integers(0, 7))):
            kind = draw(
                st.sampled_from(["launch", "launch", "launch", "stream_sync", "device_sync"])
            )
            end = now + draw(st.integers(1, 4))
            stream = draw(st.sampled_from([1, 2]))
            calls.append(Call(len(calls), thread, kind, now, end, stream))
            if kind == "launch":
                start = now + draw(st.integers(0, 4))
                call = draw(st.sampled_from([calls[-1].call_id] * 5 + [None]))
                ops.append(Op(len(ops), stream, start, start + draw(st.integers(1, 5)), call))
            now = end + draw(st.integers(0, 4))
    return ops, calls


def awaited_end(sync, ops, calls):
    """When the work ended that a sync waits for, or None."""
    own = [
        op
        for op in ops
        if (sync.kind == "device_sync" or op.stream == sync.stream)
        and (op.call is None or calls[op.call].start <= sync.start)
    ]
    if own:
        return max(op.end for op in own)
    ended = [op.end for op in ops if op.end <= sync.end]
    return max(ended) if ended and sync.end - sync.start >= 2 else None


def owner_of(gap_op, ops, calls):
    """The blocking call behind a gap that `gap_op` ends, by the words of the definition."""
    call = calls[gap_op.call]
    syncs = [
        sync
        for sync in calls
        if sync.thread == call.thread and sync.kind != "launch" and sync.end <= call.start
        for end in [awaited_end(sync, ops, calls)]
        if end is not None and sync.start < end <= sync.end
    ]
    if not syncs:
        return None
    sync = max(syncs, key=lambda s: s.end)
    for op in ops:
        if op.call is None:
            continue
        launch = calls[op.call]
        before = [o.end for o in ops if (o.start, o.op_id) < (op.start, op.op_id)]
        is_ahead = bool(before) and launch.end <= max(before)
        if is_ahead and launch.start >= sync.end and launch.end <= call.start:
            return None
    return sync


def verdict(instant, ops, calls):
    """(cause, part, owner) of one idle instant between ops."""
    before = [op for op in ops if op.start <= instant]
    after = min((op for op in ops if op.start > instant), key=lambda op: (op.start, op.op_id))
    gap_start = max(op.end for op in before)
    if after.call is None:
        return "unknown", None, None
    call = calls[after.call]
    if call.end <= gap_start:
        return "launch-latency", None, None
    sync = owner_of(after, ops, calls)
    if instant >= call.start:
        return ("host-blocked", "launch", sync.call_id) if sync else ("host-late", "launch", None)
    if sync is None:
        return "host-late", "host", None
    if instant < awaited_end(sync, ops, calls):
        return "host-blocked", "blocked", sync.call_id
    return "host-blocked", "wake-up" if instant < sync.end else "exposed", sync.call_id


def tables(ops, calls):
    op_rows = [
        (o.op_id, "kernel", 0, 0, o.stream, o.start * TICK_NS, o.end * TICK_NS, o.call) for o in ops
    ]
    op_names = "op_id kind process_id device_id stream_id start_ns end_ns call_id".split()
    call_rows = [
        (c.call_id, 0, c.thread, c.kind, c.start * TICK_NS, c.end * TICK_NS, c.stream)
        for c in calls
    ]
    call_names = "call_id process_id thread_id kind start_ns end_ns stream_id".split()
    schema = lambda table, names: {n: TABLES[table].schema[n] for n in names}  # noqa: E731
    return (
        TABLES["ops"].conform(pl.DataFrame(op_rows, schema("ops", op_names), orient="row")),
        TABLES["calls"].conform(pl.DataFrame(call_rows, schema("calls", call_names), orient="row")),
    )


@settings(max_examples=400, deadline=None)
@given(programs())
def test_every_instant_has_the_cause_that_the_definition_gives_it(program):
    ops, calls = program
    op_table, call_table = tables(ops, calls)
    start = min((op.start for op in ops), default=0)
    end = max((op.end for op in ops), default=0)
    window = pl.DataFrame(
        {"device_id": [0], "start_ns": [start * TICK_NS], "end_ns": [end * TICK_NS]}
    )
    empty = {name: TABLES[name].empty() for name in ("copies", "waits", "ranges")}
    windows = WINDOWS.conform(window if ops else window.clear())
    others = (empty[name] for name in ("copies", "waits", "ranges"))
    pieces = pl.concat(idle_pieces(op_table, call_table, *others, windows))
    found = {
        instant: (row["cause"], row["part"], row["owner_call_id"])
        for row in pieces.iter_rows(named=True)
        for instant in range(row["start_ns"] // TICK_NS, row["end_ns"] // TICK_NS)
    }
    idle = [
        instant
        for instant in range(start, end)
        if not any(op.start <= instant < op.end for op in ops)
    ]
    assert found == {instant: verdict(instant, ops, calls) for instant in idle}
    length = (pieces["end_ns"] - pieces["start_ns"]).sum()
    assert length == len(idle) * TICK_NS
