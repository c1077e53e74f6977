"""The ledger against an oracle that decides every instant by itself, with plain loops."""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.idle_time.blocking import CLOCK_TOLERANCE_NS, MIN_UNNAMED_WAIT_NS
from tracekit.idle_time.host_syncs import PART_COLUMNS, host_syncs
from tracekit.idle_time.pieces import idle_pieces
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
    """Calls of one or two threads, one after another on each; a launch puts one op or a graph.

    A thread may begin with what leaves a tail: work for two streams, and a wait for one of them. Or
    with a long wait and short ops behind it. It calls in bursts, with a while in between, so that a
    lead can be won and lost.
    """
    calls, ops = [], []
    kinds = ["launch", "launch", "launch", "graph_launch", "stream_sync", "device_sync"]
    for thread in range(draw(st.integers(1, 2))):
        now = draw(st.integers(0, 4))
        opening = draw(
            st.sampled_from(
                [[], ["launch", "launch", "stream_sync"], ["long", "wait", "launch", "launch"]]
            )
        )
        others = [draw(st.sampled_from(kinds)) for _ in range(draw(st.integers(0, 7)))]
        for kind in opening + others:
            end = now + draw(st.integers(1, 4))
            stream = draw(st.sampled_from([1, 2]))
            is_long, is_wait = kind == "long", kind == "wait"
            if is_wait:
                stream, end = ops[-1].stream, max(now + 1, ops[-1].end)
            kind = {"long": "launch", "wait": "stream_sync"}.get(kind, kind)
            calls.append(Call(len(calls), thread, kind, now, end, stream))
            start = now + draw(st.integers(0, 4))
            nodes = {"launch": 1, "graph_launch": draw(st.integers(1, 3))}.get(kind, 0)
            is_lost = kind == "launch" and not is_long and draw(st.integers(0, 5)) == 0
            for _ in range(nodes):
                stop = start + (draw(st.integers(9, 15)) if is_long else draw(st.integers(1, 6)))
                ops.append(Op(len(ops), stream, start, stop, None if is_lost else len(calls) - 1))
                start = stop + draw(st.integers(0, 2))
            now = end + draw(st.sampled_from([0, 0, 1, 4, 9]))
    return tuple(ops), tuple(calls)


def in_order(ops):
    return sorted(ops, key=lambda op: (op.start, op.op_id))


@lru_cache(1000)
def released_at(sync, ops, calls):
    """When the work ended that a sync waited for; None if it did not wait."""
    own = [
        op.end
        for op in ops
        if (sync.kind == "device_sync" or op.stream == sync.stream)
        and (op.call is None or calls[op.call].start <= sync.start)
    ]
    if own and sync.start < max(own) <= sync.end:
        return max(own)
    ended = [op.end for op in ops if op.end <= sync.end]
    lasted = sync.end - sync.start >= 2
    return max(ended) if lasted and ended and max(ended) > sync.start else None


def is_first_of_its_call(op, ops):
    return op.call is None or op == in_order([o for o in ops if o.call == op.call])[0]


def is_lead(op, sync, ops, calls):
    """Whether an op's call returned long before the device had finished what was given it before.

    Given since the sync returned, and by another call. Long is half of what the sync took, the time
    from its start until it was released, but no more than a millisecond.
    """
    if op.call is None or calls[op.call].start < sync.end:
        return False
    call = calls[op.call]
    taken = released_at(sync, ops, calls) - sync.start
    return any(
        other.call is not None
        and sync.end <= calls[other.call].start < call.start
        and (other.end - call.end) * TICK_NS >= min(taken * TICK_NS / 2, 1_000_000)
        for other in ops
    )


@lru_cache(1000)
def behind(op, ops, calls):
    """The instants before an op in which the device idled and the op's own call had not returned."""
    before = [other.end for other in in_order(ops)[: in_order(ops).index(op)]]
    if not before or op.call is None or not is_first_of_its_call(op, ops):
        return 0
    return max(0, min(op.start, calls[op.call].end) - max(before))


def idled_behind(sync, gap_op, ops, calls):
    """How long the device idled before the gap behind calls that `sync` was the last block of."""
    return sum(
        behind(op, ops, calls)
        for op in ops
        if op.start < gap_op.start and op.call is not None and last_block(op, ops, calls) == sync
    )


@lru_cache(1000)
def owner_of(gap_op, ops, calls):
    """The blocking call behind a gap that `gap_op` ends, by the words of the definition."""
    sync = last_block(gap_op, ops, calls)
    if sync is None:
        return None
    call = calls[gap_op.call]
    caught_up = any(calls[op.call].end <= call.start for op in ops if is_lead(op, sync, ops, calls))
    taken = released_at(sync, ops, calls) - sync.start
    is_paid = idled_behind(sync, gap_op, ops, calls) >= taken
    return None if caught_up or is_paid else sync


@lru_cache(1000)
def last_block(gap_op, ops, calls):
    """The last call on the thread of an op's call that device work released before that call."""
    call = calls[gap_op.call]
    syncs = [
        sync
        for sync in calls
        if sync.thread == call.thread
        and "sync" in sync.kind
        and sync.end <= call.start
        and released_at(sync, ops, calls) is not None
    ]
    return max(syncs, key=lambda s: s.end, default=None)


def verdict(instant, ops, calls):
    """(cause, part, owner) of one idle instant between ops."""
    after = in_order([op for op in ops if op.start > instant])[0]
    if not is_first_of_its_call(after, ops):
        return "dispatch", None, None
    if after.call is None:
        return "unknown", None, None
    call = calls[after.call]
    if instant >= call.end:
        return "launch-latency", None, None
    sync = owner_of(after, ops, calls)
    if sync is None:
        return "host-late", "launch" if instant >= call.start else "host", None
    if instant >= call.start:
        return "host-blocked", "launch", sync.call_id
    if instant < released_at(sync, ops, calls):
        return "host-blocked", "blocked", sync.call_id
    return "host-blocked", "wake-up" if instant < sync.end else "exposed", sync.call_id


def tables(ops, calls):
    graphs = {call.call_id for call in calls if call.kind == "graph_launch"}
    # Of an op without its call it is the call that is lost.
    launched = {op.call for op in ops}
    calls = [c for c in calls if c.kind != "launch" or c.call_id in launched]
    op_rows = {
        "op_id": [op.op_id for op in ops],
        "kind": ["kernel" for _ in ops],
        "process_id": [0 for _ in ops],
        "device_id": [0 for _ in ops],
        "stream_id": [op.stream for op in ops],
        "start_ns": [op.start * TICK_NS for op in ops],
        "end_ns": [op.end * TICK_NS for op in ops],
        "call_id": [op.call for op in ops],
        "graph_launch_id": [op.call if op.call in graphs else None for op in ops],
    }
    call_rows = {
        "call_id": [call.call_id for call in calls],
        "process_id": [0 for _ in calls],
        "thread_id": [call.thread for call in calls],
        "kind": [call.kind for call in calls],
        "start_ns": [call.start * TICK_NS for call in calls],
        "end_ns": [call.end * TICK_NS for call in calls],
        "stream_id": [call.stream for call in calls],
    }
    return [
        TABLES[name].conform(pl.DataFrame(rows, {n: TABLES[name].schema[n] for n in rows}))
        for name, rows in (("ops", op_rows), ("calls", call_rows))
    ]


@settings(max_examples=150, deadline=None)
@given(programs())
def test_every_instant_has_the_cause_that_the_definition_gives_it(program):
    ops, calls = program
    op_table, call_table = tables(ops, calls)
    start = min((op.start for op in ops), default=0)
    end = max((op.end for op in ops), default=0)
    window = pl.DataFrame(
        {"device_id": [0], "start_ns": [start * TICK_NS], "end_ns": [end * TICK_NS]}
    )
    empty = {name: TABLES[name].empty() for name in ("copies", "waits", "marks", "ranges")}
    windows = WINDOWS.conform(window if ops else window.clear())
    others = (empty[name] for name in ("copies", "waits", "marks", "ranges"))
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


@settings(max_examples=40, deadline=None)
@given(programs(), st.integers(0, 20), st.integers(1, 40))
def test_a_blocking_call_owns_in_a_window_what_the_definition_gives_it_there(
    program, first, length
):
    ops, calls = program
    op_table, call_table = tables(ops, calls)
    begin = max(first, min((op.start for op in ops), default=0))
    end = min(first + length, max((op.end for op in ops), default=0))
    bounds = [(0, begin * TICK_NS, end * TICK_NS), (None, first * TICK_NS, end * TICK_NS)]
    windows = pl.DataFrame([row for row in bounds if row[1] < row[2]], WINDOWS.schema, orient="row")
    empty = [TABLES[name].empty() for name in ("copies", "marks", "ranges")]
    found = host_syncs(op_table, call_table, *empty, windows)
    owned, parts = Counter(), Counter()
    for instant in range(begin, end):
        if not any(op.start <= instant < op.end for op in ops):
            cause, part, owner = verdict(instant, ops, calls)
            if cause == "host-blocked":
                owned[owner] += TICK_NS
                parts[part] += TICK_NS
    rows = found.filter(pl.col("owned_ns") > 0).select("call_id", "owned_ns").rows()
    assert dict(rows) == owned
    for column, part in PART_COLUMNS.items():
        assert found[column].sum() == parts[part]
    held = {
        sync.call_id: max(0, min(sync.end, end) - max(sync.start, first)) * TICK_NS
        for sync in calls
        if "sync" in sync.kind and released_at(sync, ops, calls) is not None
    }
    assert windows.height < 2 or set(found["call_id"]) == {
        call for call, held_ns in held.items() if held_ns or owned[call]
    }
    assert all(held[call] == ns for call, ns in found.select("call_id", "held_ns").rows())
