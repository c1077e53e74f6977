"""The critical path against an oracle that walks back op by op, with plain loops."""

import random
from dataclasses import dataclass
from itertools import pairwise

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.analyses.critical_path import step_paths
from tracekit.idle_time.blocking import CLOCK_TOLERANCE_NS, MIN_UNNAMED_WAIT_NS
from tracekit.idle_time.pieces import HAND_OVER_LIMIT_NS
from tracekit.tables.catalog import TABLES
from tracekit.tables.identity import WINDOWS

# Longer than the clock tolerance; two make a wait that counts, and five the longest hand-over.
TICK_NS = 20_000
assert CLOCK_TOLERANCE_NS < TICK_NS <= MIN_UNNAMED_WAIT_NS == 2 * TICK_NS
LIMIT = HAND_OVER_LIMIT_NS // TICK_NS


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
    stream: int


@dataclass(frozen=True)
class Wait:
    call: int
    stream: int
    recording: int
    pending: int
    done: int


def program_of(seed):
    """Calls of one or two threads, ops and graphs that run more or less when they may, and waits."""
    rng = random.Random(seed)
    calls, ops, marks = [], [], set()
    kinds = ["launch"] * 4 + [
        "graph_launch",
        "stream_sync",
        "device_sync",
        "event_wait",
        "event_wait",
    ]
    for thread in range(rng.randint(1, 2)):
        now = rng.randint(0, 4)
        for _ in range(rng.randint(4, 14)):
            kind, stream, end = rng.choice(kinds), rng.choice([1, 2]), now + rng.randint(1, 4)
            calls.append(Call(len(calls), thread, kind, now, end, stream))
            start = now + rng.randint(0, 9)
            nodes = {"launch": 1, "graph_launch": rng.randint(1, 4)}.get(kind, 0)
            is_lost = kind == "launch" and rng.random() < 0.1
            for _ in range(nodes):
                stop = start + rng.randint(1, 6)
                lane = rng.choice([1, 2]) if kind == "graph_launch" else stream
                ops.append(Op(len(ops), lane, start, stop, None if is_lost else len(calls) - 1))
                start = max(start, stop + rng.randint(-3, 2))
            now = end + rng.choice([0, 0, 1, 4, 9])
            if thread == 0 and rng.random() < 0.4:
                marks.add(now)
    waits = [_wait(rng, call, ops, calls) for call in calls if call.kind == "event_wait"]
    told = rng.choice([0.7, 1])
    return (
        ops,
        calls,
        [wait for wait in waits if wait and rng.random() < told],
        list(pairwise(sorted(marks))),
    )


def _wait(rng, call, ops, calls):
    """A wait for all that the other stream had been given, as a reader would write it down."""
    recording = 3 - call.stream
    done = [
        o.end
        for o in ops
        if o.call is not None and lane(o, calls) == recording and calls[o.call].start < call.start
    ]
    before = [o.end for o in ops if lane(o, calls) == call.stream and o.start < call.start]
    if not done:
        return None
    pending = max([call.end, *before])
    is_known = rng.random() < 0.8
    return Wait(
        call.call_id, call.stream, recording if is_known else 9, pending, max(*done, pending)
    )


def lane(op, calls):
    is_graph = op.call is not None and calls[op.call].kind == "graph_launch"
    return calls[op.call].stream if is_graph else op.stream


def order(op):
    return op.start, op.end, op.op_id


def released_at(sync, ops, calls):
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


def first_ending(ops, end):
    return min((op for op in ops if op.end == end), key=order, default=None)


def graph_mates(op, ops, calls):
    if op.call is None or calls[op.call].kind != "graph_launch":
        return []
    return [o for o in ops if o.call == op.call and order(o) < order(op)]


def candidates(op, program):
    """What an op may have waited for: (time, preference, sort), with what is needed to go on."""
    ops, calls, waits = program
    inner = graph_mates(op, ops, calls)
    mates = inner or [o for o in ops if lane(o, calls) == lane(op, calls) and order(o) < order(op)]
    if mates:
        previous = max(mates, key=order)
        running = previous.end > op.start
        pick = previous if running else max(mates, key=lambda o: (o.end, order(o)))
        yield min(pick.end, op.start), 2, "order", pick
    if inner or op.call is None:
        return
    for wait in waits:
        if wait.pending >= wait.done or wait.done > op.start:
            continue
        behind = [
            o
            for o in ops
            if o.call is not None
            and lane(o, calls) == wait.stream
            and calls[o.call].start >= calls[wait.call].start
            and not graph_mates(o, ops, calls)
        ]
        if min(behind, key=lambda o: (calls[o.call].start, order(o)), default=None) == op:
            there = [o for o in ops if wait.recording in (o.stream, lane(o, calls))]
            yield wait.done, 1, "wait", first_ending(there, wait.done)
    call = calls[op.call]
    yield call.end if call.end <= op.start else call.start, 0, "call", call


def hides_a_wait(op, moment, program):
    """Whether something ended meanwhile that an event wait of which nothing is known may name."""
    ops, calls, waits = program
    told = {wait.call for wait in waits}
    is_silent = any(c.kind == "event_wait" and c.call_id not in told for c in calls)
    ended = any(moment < o.end <= op.start for o in ops)
    return is_silent and ended and not graph_mates(op, ops, calls)


def path(op, start, program):
    """The pieces of a path, last first: (start, end, kind, name or thread)."""
    ops, calls, _ = program
    until = op.end
    while op is not None:
        yield op.start, until, "kernel", f"k{op.op_id}"
        if op.start <= start:
            return
        found = list(candidates(op, program))
        if not found:
            yield start, op.start, "unknown", None
            return
        moment, _, sort, what = max(
            found, key=lambda f: (f[0], f[1], f[2] == "wait" and f[3] is not None)
        )
        if sort == "call":
            moment = min(what.end, op.start)
        is_known = op.call is not None or graph_mates(op, ops, calls)
        kind = {"order": "dispatch" if is_known else "unknown", "wait": "hand-over"}.get(sort)
        kind = kind or "launch-latency"
        is_hidden = hides_a_wait(op, moment, program)
        yield moment, op.start, "unknown" if op.start - moment > LIMIT or is_hidden else kind, None
        if sort != "call":
            op, until = what, moment
            if op is None:
                yield start, until, "unknown", None
            continue
        syncs = [
            (c.end, c)
            for c in calls
            if c.thread == what.thread
            and "sync" in c.kind
            and c.end <= what.start
            and released_at(c, ops, calls) is not None
        ]
        if not syncs:
            yield start, moment, "host", what.thread
            return
        _, sync = max(syncs, key=lambda pair: pair[0])
        yield sync.end, moment, "host", what.thread
        until = released_at(sync, ops, calls)
        yield until, sync.end, "blocking-call", None
        op = first_ending(ops, until)


def oracle(program, steps):
    """Every instant of each step's path: {(step start, instant): (kind, name)}."""
    ops, calls, _ = program
    found = {}
    for begin, end in steps:
        is_called = any(op.call is not None for op in ops)
        mine = [
            o
            for o in ops
            if (o.call is not None or not is_called)
            and begin <= (calls[o.call].start if is_called else o.start) < end
        ]
        mine = [o for o in mine if o.end > begin]
        if not mine:
            continue
        last = max(mine, key=lambda o: (o.end, order(o)))
        for first, until, kind, name in path(last, begin, program):
            for instant in range(max(first, begin), until):
                what = kind, name
                if kind == "host":
                    inside = [s for s in steps if s[0] <= instant < s[1]] if name == 0 else []
                    what = ("host-range", "tk1 step * kind=a") if inside else ("host-other", None)
                assert (begin, instant) not in found
                found[begin, instant] = what
        assert len([k for k in found if k[0] == begin]) == last.end - begin
    return found


def frames(ops, calls, waits, steps):
    graphs = {call.call_id for call in calls if call.kind == "graph_launch"}
    # Of an op without a call the trace does not hold the call either.
    launched = {op.call for op in ops}
    rows = {
        "ops": [
            {
                "op_id": op.op_id,
                "kind": "kernel",
                "name": f"k{op.op_id}",
                "process_id": 0,
                "device_id": 0,
                "stream_id": op.stream,
                "start_ns": op.start * TICK_NS,
                "end_ns": op.end * TICK_NS,
                "call_id": op.call,
                "graph_launch_id": op.call if op.call in graphs else None,
            }
            for op in ops
        ],
        "calls": [
            {
                "call_id": call.call_id,
                "process_id": 0,
                "thread_id": call.thread,
                "name": call.kind,
                "kind": call.kind,
                "start_ns": call.start * TICK_NS,
                "end_ns": call.end * TICK_NS,
                "stream_id": call.stream,
            }
            for call in calls
            if call.kind != "launch" or call.call_id in launched
        ],
        "waits": [
            {
                "wait_id": wait.call,
                "process_id": 0,
                "waiting_stream_id": wait.stream,
                "recording_stream_id": wait.recording,
                "wait_call_id": wait.call,
                "pending_start_ns": wait.pending * TICK_NS,
                "pending_end_ns": wait.done * TICK_NS,
                "evidence": "recorded",
            }
            for wait in waits
        ],
        "ranges": [
            {
                "range_id": number,
                "kind": "marker",
                "process_id": 0,
                "thread_id": 0,
                "text": f"tk1 step {number} kind=a",
                "start_ns": begin * TICK_NS,
                "end_ns": end * TICK_NS,
            }
            for number, (begin, end) in enumerate(steps)
        ],
        "copies": [],
        "marks": [],
    }
    return {
        name: TABLES[name].conform(
            pl.DataFrame(found, {n: TABLES[name].schema[n] for n in (found or [{}])[0]})
        )
        for name, found in rows.items()
    }


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_instant_of_every_path_is_what_walking_back_op_by_op_says(seed):
    ops, calls, waits, steps = program_of(seed)
    if not steps:
        return
    tables = frames(ops, calls, waits, steps)
    windows = pl.DataFrame([(None, None, None)], WINDOWS.schema, orient="row")
    paths, segments = step_paths(**tables, windows=windows)
    starts = paths["start_ns"].to_list()
    found = {}
    for row in segments.iter_rows(named=True):
        begin = starts[row["path"]] // TICK_NS
        for instant in range(row["start_ns"] // TICK_NS, row["end_ns"] // TICK_NS):
            assert (begin, instant) not in found
            is_named = row["kind"] in ("kernel", "host-range")
            found[begin, instant] = row["kind"], row["name"] if is_named else None
    assert found == oracle((ops, calls, waits), steps)
    lengths = (
        segments.group_by("path").agg((pl.col("end_ns") - pl.col("start_ns")).sum()).sort("path")
    )
    whole = paths["path_end_ns"] - paths["start_ns"]
    assert lengths["end_ns"].to_list() == whole.to_list()
