"""Idle time beside what a trace shows to be missing, by hand: lost calls, and ops that are lost."""

import polars as pl
import pytest

from tracekit.api_calls import launches_without_ops
from tracekit.idle_time.pieces import idle_pieces
from tracekit.idle_time.unseen import unseen
from tracekit.tables.catalog import TABLES
from tracekit.tables.identity import WINDOWS

NAMES = ("ops", "calls", "copies", "waits", "marks", "ranges")
OPS = "op_id kind name device_id process_id stream_id start_ns end_ns call_id correlation_id"
CALLS = "call_id process_id thread_id name kind start_ns end_ns correlation_id stream_id event_key"
MARKS = "range_id process_id thread_id time_ns statement call_id"
# µs, written as ns: the device is idle from 100 to 900, and the host calls nothing.
GAP = f"""{OPS}
    0 kernel a 0 0 1      0  100000 0 10
    1 kernel a 0 0 1 900000 1000000 1 11"""
LATE = f"""{CALLS}
    0 0 7 cudaLaunchKernel launch  -40000  -30000 10 1 -
    1 0 7 cudaLaunchKernel launch  880000  890000 11 1 -"""
HOST_LATE = [(100_000, 890_000, "host-late"), (890_000, 900_000, "launch-latency")]
UNKNOWN = [(100_000, 890_000, "unknown"), (890_000, 900_000, "launch-latency")]


@pytest.fixture
def causes(frame):
    """Return when each cause held in a trace of aligned text."""

    def cut(**texts):
        frames = [
            frame(name, texts[name]) if name in texts else TABLES[name].empty() for name in NAMES
        ]
        ops = frames[0]
        bounds = [(0, ops["start_ns"].min(), ops["end_ns"].max())]
        windows = pl.DataFrame(bounds, WINDOWS.schema, orient="row")
        rows = pl.concat(list(idle_pieces(*frames, windows))).sort("start_ns")
        merged = []
        for start, end, cause in rows.select("start_ns", "end_ns", "cause").iter_rows():
            if merged and merged[-1][1:] == (start, cause):
                start = merged.pop()[0]
            merged.append((start, end, cause))
        return merged

    return cut


def test_a_host_that_calls_nothing_is_late_although_cupti_skips_numbers(causes):
    assert causes(ops=GAP, calls=LATE) == HOST_LATE
    ops, calls = GAP.replace("1 11", "1 99"), LATE.replace("890000 11", "890000 99")
    assert causes(ops=ops, calls=calls) == HOST_LATE


def test_a_marker_of_a_wait_without_its_call_makes_the_gap_behind_it_unknown(causes):
    marks = f"{MARKS}\n 5 0 7 150000 sync -"
    assert causes(ops=GAP, calls=LATE, marks=marks) == UNKNOWN


def test_a_marker_on_another_thread_says_nothing_of_this_one(causes):
    other = LATE + "\n 2 0 8 cudaGetDevice other -20000 -19000 12 - -"
    marks = f"{MARKS}\n 5 0 8 150000 sync -"
    assert causes(ops=GAP, calls=other, marks=marks) == HOST_LATE


def test_a_marker_of_a_wait_that_the_host_polled_for_is_no_loss(causes):
    polled = LATE + "\n 2 0 7 cudaEventQuery event_query 140000 141000 15 - -"
    marks = f"{MARKS}\n 5 0 7 150000 sync -"
    assert causes(ops=GAP, calls=polled, marks=marks) == HOST_LATE


def test_a_marker_before_all_calls_of_its_thread_is_of_the_time_before_recording(causes):
    marks = f"{MARKS}\n 5 0 7 -50000 sync -"
    assert causes(ops=GAP, calls=LATE, marks=marks) == HOST_LATE


def test_a_marker_of_a_streams_wait_without_its_call_may_have_held_the_next_op(causes):
    # It does not hold the host.
    marks = f"{MARKS}\n 5 0 7 150000 wait -"
    cut = causes(ops=GAP, calls=LATE, marks=marks)
    assert cut == [(100_000, 890_000, "host-late"), (890_000, 900_000, "unknown")]


def test_a_value_that_was_read_without_a_wait_shows_that_the_wait_is_lost(causes):
    ops = f"""{OPS}
    0 kernel a 0 0 1      0  100000 0 10
    1 copy   b 0 0 1 125000  126000 1 11
    2 kernel a 0 0 1 900000 1000000 3 13"""
    calls = f"""{CALLS}
    0 0 7 cudaLaunchKernel      launch      -40000 -30000 10 1 -
    1 0 7 cudaMemcpyAsync       copy        120000 124000 11 1 -
    2 0 7 cudaStreamSynchronize stream_sync 131000 190000 12 1 -
    3 0 7 cudaLaunchKernel      launch      880000 890000 13 1 -"""
    ranges = """range_id kind process_id thread_id text start_ns end_ns
        9 operator 0 7 aten::_local_scalar_dense 110000 200000"""
    # The work was done before the wait began, so that it did not hold the host.
    assert causes(ops=ops, calls=calls, ranges=ranges)[2:] == [
        (126_000, 890_000, "host-late"),
        (890_000, 900_000, "launch-latency"),
    ]
    less = "\n".join(line for line in calls.splitlines() if "Synchronize" not in line)
    # What was lost may have been a stream's wait, too, in a process that lost calls.
    assert causes(ops=ops, calls=less, ranges=ranges)[2:] == [(126_000, 900_000, "unknown")]


def test_an_op_that_is_lost_may_have_run_in_the_gap_before_the_next(causes):
    # The launch at 400 has no op; what it launched ran before the op that was launched at 880.
    calls = f"""{CALLS}
    0 0 7 cudaLaunchKernel launch  -40000  -30000 10 1 -
    1 0 7 cudaLaunchKernel launch  400000  410000 15 - -
    2 0 7 cudaLaunchKernel launch  880000  890000 20 1 -"""
    ops = GAP.replace("1000000 1 11", "1000000 2 20")
    assert causes(ops=ops, calls=calls) == [(100_000, 900_000, "unknown")]


def test_a_lost_op_that_a_wait_for_the_device_saw_done_is_not_in_a_later_gap(causes):
    # Launched at 50, over when the device was waited for at 160; 300 to 390 is another gap.
    ops = f"""{OPS}
    0 kernel a 0 0 1      0 100000 0 10
    1 kernel a 0 0 1 200000 300000 3 20
    2 kernel a 0 0 1 390000 400000 4 25"""
    calls = f"""{CALLS}
    0 0 7 cudaLaunchKernel      launch       -40000 -30000 10 1 -
    1 0 7 cudaLaunchKernel      launch        50000  51000 12 - -
    2 0 7 cudaDeviceSynchronize device_sync   60000 160000 13 - -
    3 0 7 cudaLaunchKernel      launch       190000 195000 20 1 -
    4 0 7 cudaLaunchKernel      launch       380000 385000 25 1 -"""
    cut = causes(ops=ops, calls=calls)
    # The op of the launch at 190 ended the first gap, in which the lost one ran.
    assert cut[0] == (100_000, 200_000, "unknown")
    # Whether the wait held the host is not known: what it waited for may be what is lost.
    assert cut[1:] == [(300_000, 385_000, "unknown"), (385_000, 390_000, "launch-latency")]


def test_a_wait_for_one_of_two_devices_does_not_show_a_lost_op_of_the_other_done(frame):
    # The launch at 50 has no op, and which device was waited for until 160 is not known.
    ops = f"""{OPS}
    0 kernel a 0 0 1       0  100000 0 10
    1 kernel a 1 0 2       0  100000 1 11
    2 kernel a 1 0 2 9000000 9900000 4 20"""
    calls = f"""{CALLS}
    0 0 7 cudaLaunchKernel      launch       -40000  -39000 10 1 -
    1 0 7 cudaLaunchKernel      launch       -30000  -29000 11 2 -
    2 0 7 cudaLaunchKernel      launch        50000   51000 12 2 -
    3 0 7 cudaDeviceSynchronize device_sync   60000  160000 13 - -
    4 0 7 cudaLaunchKernel      launch      8900000 8910000 20 2 -"""
    tables = frame("ops", ops), frame("calls", calls)
    empty = [TABLES[name].empty() for name in ("marks", "ranges")]
    spans = [(0, 50_000, 9_000_000), (1, 50_000, 9_000_000)]
    assert unseen(*tables, *empty).spans.rows() == spans
    one = tables[0].with_columns(pl.lit(1, pl.Int32).alias("device_id"))
    assert unseen(one, tables[1], *empty).spans.rows() == [(1, 50_000, 160_000)]


def test_launches_without_ops_are_those_between_others_that_have_theirs(frame):
    calls = frame(
        "calls",
        f"""{CALLS}
        0 0 7 cudaLaunchKernel       launch   10  11 10 - -
        1 0 7 cudaLaunchKernel       launch   20  21 12 - -
        2 0 7 cudaLaunchKernel       launch   30  31 14 - -
        3 0 7 cudaMemcpyAsync        copy     40  41 16 - -
        4 0 7 hipMemcpyAsync         copy     50  51 18 - -
        5 0 7 cudaMemsetAsync        fill     60  61 20 - -
        6 0 7 cudaStreamBeginCapture other    70  71 22 - -
        7 0 7 cudaLaunchKernel       launch   80  81 24 - -
        8 0 7 cudaStreamEndCapture   other    90  91 26 - -
        9 0 7 cudaLaunchKernel       launch  100 109 28 - -
        10 0 7 cuLaunchKernel        launch  101 108 28 - -
        11 0 7 cudaLaunchKernel      launch  110 111 30 - -""",
    )
    ops = frame(
        "ops",
        f"""{OPS}
        0 kernel a 0 0 1  25  30 1 12
        1 kernel a 0 0 1 105 115 9 28""",
    )
    # The first and the last may have been cut off; a copy of HIP may run elsewhere, a fill of
    # nothing has no op, nor has what was captured, and the driver's call is the runtime's.
    assert launches_without_ops(calls, ops)["call_id"].to_list() == [2, 3]


def test_lost_launches_make_every_hole_in_cupti_numbers_a_call_that_may_have_waited(causes):
    # Two of four kernels of one name lost their call: others are lost, too, and the number 25.
    ops = f"""{OPS}
    0 kernel a 0 0 1       0  100000 0 10
    1 kernel a 0 0 1  200000  300000 - 15
    2 kernel a 0 0 1  400000  500000 - 16
    3 kernel a 0 0 1  900000 1000000 1 26"""
    numbered = f"""{CALLS}
    0 0 7 cudaLaunchKernel launch -40000 -30000 10 1 -
    1 0 7 cudaLaunchKernel launch 880000 890000 26 1 -"""
    cut = causes(ops=ops, calls=numbered)
    assert {cause for *_, cause in cut} == {"unknown"}
    # Of another name, none of whose calls are there, nothing is lost: they are not recorded.
    others = ops.replace("- 15", "- 15").replace("1 kernel a", "1 kernel b")
    others = others.replace("2 kernel a", "2 kernel b")
    late = causes(ops=others, calls=numbered)
    assert (500_000, 890_000, "host-late") in late
