"""Graph launches without ops: how busy the device may be in truth, by hand and by simulation."""

import random

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracekit.tables.catalog import TABLES
from tracekit.trace import Trace
from tracekit.windows import Window

DAY_NS = 86_400 * 10**9
CODE = "graphs.launches-without-ops"
# One stream: an op, a graph without ops, an op that was launched after it.
OPS = """
    op_id  kind    process_id  device_id  stream_id  start_ns  end_ns  call_id  graph_launch_id
    0      kernel  0           0          0          100       200     0        -
    1      kernel  0           0          0          900       1000    2        -"""
CALLS = """
    call_id  process_id  thread_id  name             kind          start_ns  end_ns  stream_id  event_key
    0        0           7          hipLaunchKernel  launch        50        60      0          -
    1        0           7          hipGraphLaunch   graph_launch  150       160     0          -
    2        0           7          hipLaunchKernel  launch        300       310     0          -"""
KINDS = ["launch", "graph_launch", "graph_launch", "event_record", "event_sync"]
KINDS += ["stream_sync", "device_sync"]
STREAMS = "stream_id process_id device_id\n 0 0 0\n 1 0 0"


def bounds(mark):
    return mark.numbers["busy_at_least_ns"], mark.numbers["busy_at_most_ns"]


def test_idle_time_between_the_launch_and_the_next_op_of_its_stream_may_be_busy(marks):
    # Idle from 200 to 900; the launch began at 150.
    (mark,) = marks(ops=OPS, calls=CALLS, streams=STREAMS).values()
    assert mark.code == f"trust-{CODE}"
    assert mark.busy_is_at_least
    assert mark.numbers == {
        "launches_without_ops": 1,
        "graph_launches": 1,
        "busy_at_least_ns": 200,
        "busy_at_most_ns": 900,
        "possible_busy_ns": 700,
    }
    assert "up to 77.8 % more of the window seems idle right behind them" in mark.text


def test_an_op_of_another_stream_shows_nothing(marks):
    ops = f"{OPS}\n    2 kernel 0 0 1 400 450 3 -"
    calls = f"{CALLS}\n    3 0 7 hipLaunchKernel launch 350 360 1 -"
    assert bounds(marks(ops=ops, calls=calls, streams=STREAMS)[CODE]) == (250, 900)


def test_an_op_that_was_queued_before_the_launch_shows_nothing(marks):
    ops = f"{OPS}\n    2 kernel 0 0 0 400 450 3 -"
    calls = f"{CALLS}\n    3 0 7 hipLaunchKernel launch 61 70 0 -"
    assert bounds(marks(ops=ops, calls=calls, streams=STREAMS)[CODE]) == (250, 900)


@pytest.mark.parametrize(
    ("call", "most_ns"),
    [
        # From 200, the end of the op before, to the return of the synchronisation at 500.
        ("hipDeviceSynchronize device_sync 170 500 - -", 500),
        ("hipStreamSynchronize stream_sync 170 500 0 -", 500),
        ("hipStreamSynchronize stream_sync 170 500 1 -", 900),
        # Begun before the launch: it need not wait for it.
        ("hipDeviceSynchronize device_sync 140 500 - -", 900),
    ],
)
def test_a_synchronisation_that_waited_for_the_launch_ends_it(marks, call, most_ns):
    calls = f"{CALLS}\n    3 0 7 {call}"
    assert bounds(marks(ops=OPS, calls=calls, streams=STREAMS)[CODE]) == (200, most_ns)


def test_a_sync_of_one_device_of_several_shows_nothing_since_it_does_not_say_which(marks):
    calls = f"{CALLS}\n    3 0 7 hipDeviceSynchronize device_sync 170 500 - -"
    ops = f"{OPS}\n    2 kernel 0 1 1 100 450 - -"
    streams = STREAMS.replace("1 0 0", "1 0 1")
    assert bounds(marks(ops=ops, calls=calls, streams=streams)[CODE]) == (200, 900)


@pytest.mark.parametrize(
    ("recorded_ns", "stream", "most_ns"), [(170, 0, 500), (140, 0, 900), (170, 1, 900)]
)
def test_an_event_ends_it_only_if_recorded_behind_it(marks, recorded_ns, stream, most_ns):
    calls = f"""{CALLS}
    3 0 7 hipEventRecord event_record {recorded_ns} {recorded_ns + 5} {stream} 77
    4 0 7 hipEventSynchronize event_sync 180 500 - 77"""
    assert bounds(marks(ops=OPS, calls=calls, streams=STREAMS)[CODE]) == (200, most_ns)


def test_without_streams_the_process_is_taken_to_run_in_order_and_the_text_says_so(marks):
    calls = CALLS.replace("60      0", "60 -").replace("160     0", "160 -")
    ops = f"{OPS}\n    2 kernel 0 0 1 400 450 3 -"
    calls += "\n    3 0 7 hipLaunchKernel launch 350 360 - -"
    mark = marks(ops=ops, calls=calls.replace("310     0", "310 -"))[CODE]
    # The first call after the launch is 2, whose op starts at 900.
    assert bounds(mark) == (250, 900)
    assert "streams are not known" in mark.text


def test_with_nothing_behind_it_the_rest_of_the_window_may_be_busy(marks):
    ops = OPS.replace("0          900       1000    2", "1 900 1000 2")
    calls = CALLS.replace("310     0", "310 1")
    # 200 recorded, and all from 200 to 900.
    assert bounds(marks(ops=ops, calls=calls, streams=STREAMS)[CODE]) == (200, 900)


def test_launches_that_end_before_or_begin_after_the_window_do_not_touch_it(marks):
    calls = f"{CALLS}\n    3 0 7 hipGraphLaunch graph_launch 1100 1110 0 -"
    tables = {"ops": OPS, "calls": calls, "streams": STREAMS}
    mark = marks(**tables)[CODE]
    assert (mark.numbers["launches_without_ops"], mark.numbers["graph_launches"]) == (1, 1)
    assert marks(**tables, window=Window(900, 1000)) == {}
    assert bounds(marks(**tables, window=Window(500, 950))[CODE]) == (50, 450)


def test_a_launch_with_an_op_has_no_mark_whichever_id_names_it(marks):
    calls = f"{CALLS}\n    3 0 7 hipGraphLaunch graph_launch 320 330 0 -"
    ops = f"{OPS}\n    2 kernel 0 0 0 400 450 1 -\n    3 kernel 0 0 0 500 550 - 3"
    assert CODE not in marks(ops=ops, calls=calls, streams=STREAMS)


def test_a_launch_counts_on_the_device_of_its_stream(marks):
    ops = f"{OPS}\n    2 kernel 0 1 1 100 200 3 -\n    3 kernel 0 1 1 900 1000 3 -"
    calls = f"{CALLS}\n    3 0 7 hipLaunchKernel launch 51 55 1 -"
    (mark,) = marks(ops=ops, calls=calls, streams="stream_id device_id\n 0 0\n 1 1").values()
    assert mark.device_id == 0


def simulated(seed, streams):
    """A host in order and streams in order: calls and ops, and for each graph launch its ops."""
    rng = random.Random(seed)
    now, free, recorded, rows = 0, dict.fromkeys(range(streams), 0), {}, {"ops": [], "calls": []}
    for call_id in range(rng.randint(4, 40)):
        kind = rng.choice(KINDS)
        stream, start_ns = rng.randrange(streams), now + rng.randint(0, 40)
        now = start_ns + rng.randint(1, 5)
        event = rng.randrange(2) if "event" in kind else None
        for _ in range({"launch": 1, "graph_launch": rng.randint(1, 3)}.get(kind, 0)):
            begin = max(now, free[stream]) + rng.randint(0, 10)
            free[stream] = begin + rng.randint(1, 60)
            rows["ops"].append(
                {
                    "op_id": len(rows["ops"]),
                    "kind": "kernel",
                    "process_id": 0,
                    "device_id": 0,
                    "stream_id": stream,
                    "start_ns": begin,
                    "end_ns": free[stream],
                    "call_id": call_id,
                    "graph_launch_id": call_id if kind == "graph_launch" else None,
                }
            )
        if kind == "event_record":
            recorded[event] = free[stream]
        until = {
            "event_sync": recorded.get(event, 0),
            "stream_sync": free[stream],
            "device_sync": max(free.values()),
        }.get(kind, 0)
        now = max(now, until)
        rows["calls"].append(
            {
                "call_id": call_id,
                "process_id": 0,
                "thread_id": 7,
                "name": kind,
                "kind": kind,
                "start_ns": start_ns,
                "end_ns": now,
                "stream_id": None if kind in {"event_sync", "device_sync"} else stream,
                "event_key": event,
            }
        )
    return rows


def busy_by_hand(ops, start_ns, end_ns):
    covered = set()
    for op in ops:
        covered.update(range(max(op["start_ns"], start_ns), min(op["end_ns"], end_ns)))
    return len(covered)


@settings(
    max_examples=75, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    seed=st.integers(0, 10**6),
    streams=st.integers(1, 3),
    lost_share=st.sampled_from([0.3, 0.8, 1.0]),
    has_streams=st.booleans(),
)
def test_whatever_is_lost_the_true_busy_time_lies_within_the_bounds(
    marks_of, seed, streams, lost_share, has_streams
):
    # Where streams are not known, the bound holds for a process that uses one.
    rows = simulated(seed, streams if has_streams else 1)
    rng = random.Random(seed)
    launches = {op["graph_launch_id"] for op in rows["ops"]} - {None}
    lost = {launch for launch in sorted(launches) if rng.random() < lost_share}
    kept = [op for op in rows["ops"] if op["graph_launch_id"] not in lost]
    if not kept:
        return
    if not has_streams:
        rows["calls"] = [call | {"stream_id": None} for call in rows["calls"]]
    found = marks_of(_trace(kept, rows["calls"]))
    later = marks_of(_trace(kept, rows["calls"], by_ns=DAY_NS))
    assert [mark.text for mark in later.values()] == [mark.text for mark in found.values()]
    start_ns, end_ns = min(op["start_ns"] for op in kept), max(op["end_ns"] for op in kept)
    truth = busy_by_hand(rows["ops"], start_ns, end_ns)
    recorded = busy_by_hand(kept, start_ns, end_ns)
    if CODE not in found:
        assert truth == recorded
        return
    least, most = bounds(found[CODE])
    assert least == recorded
    assert least <= truth <= most <= end_ns - start_ns


def _trace(ops, calls, by_ns=0):
    frames = {}
    for name, rows in (("ops", ops), ("calls", calls)):
        schema = {column: TABLES[name].schema[column] for column in rows[0]}
        frame = pl.DataFrame(rows, schema=schema, orient="row")
        frames[name] = frame.with_columns(pl.col("start_ns", "end_ns") + by_ns)
    return Trace.from_frames(frames, notes=[], sources=["t"], format_name="kineto")
