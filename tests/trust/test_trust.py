"""Trust marks: each on tables written by hand, with its numbers worked out by hand."""

import pytest
from healthy_trace import CALLS, OPS, PROCESSES, RANGES

from tracekit.formats import read_trace
from tracekit.formats.store import write_run
from tracekit.reports import CAUSES
from tracekit.tables.notes import Note, Severity
from tracekit.trace import CycleTimes, Trace, join_traces
from tracekit.trust import checks
from tracekit.windows import Window


def test_a_trace_in_which_nothing_is_wrong_has_no_mark(marks):
    assert marks() == {}


def test_codes_are_trust_noun_problem_and_touch_parts_that_there_are():
    for code, check in checks().items():
        noun, dot, problem = code.removeprefix("trust-").partition(".")
        assert code.startswith("trust-")
        assert noun and dot and problem
        assert check.touches.parts <= {"busy", "idle", *CAUSES}


def test_a_note_of_lost_rows_becomes_a_mark_that_makes_busy_time_a_lower_bound(marks):
    lost = Note("kineto.truncated", Severity.DATA_LOSS, "The file stops early", 12, "a.json")
    found = marks(notes=[lost, Note("kineto.frames-dropped", Severity.INFO, "Frames", 5)])
    (mark,) = found.values()
    assert mark.code == "trust-records.lost"
    assert mark.text == "kineto.truncated (12×): The file stops early"
    assert mark.numbers == {"note": "kineto.truncated", "records": 12}
    assert mark.notes == ("kineto.truncated",)
    assert mark.busy_is_at_least


def test_one_loss_in_the_files_of_several_ranks_is_one_mark_with_the_sum(marks):
    lost = [Note("kineto.truncated", Severity.DATA_LOSS, "Stops", n, f"{n}.json") for n in (3, 4)]
    assert marks(notes=lost)["records.lost"].numbers["records"] == 7


def test_a_dispatch_that_was_twice_in_a_file_is_no_reason_for_doubt(marks):
    assert marks(notes=[Note("rocpd.duplicate-dispatches", Severity.DATA_LOSS, "Twice", 2)]) == {}


def test_bad_text_hides_no_work(marks):
    note = Note("rocpd.text-undecodable", Severity.DATA_LOSS, "Not UTF-8", 2)
    assert not marks(notes=[note])["records.lost"].busy_is_at_least


def test_ops_without_a_device_are_counted_once_whoever_noted_them(marks):
    ops = f"{OPS}\n    2 kernel 0 - 0 500 900 1 11"
    notes = [Note("kineto.device-unknown", Severity.DATA_LOSS, "No device", 1)]
    found = marks(notes=notes, ops=ops)
    (mark,) = found.values()
    assert mark.code == "trust-ops.no-device"
    assert mark.numbers == {"ops": 1, "trace_ops": 3}
    assert mark.busy_is_at_least
    assert {"kineto.device-unknown", "trace-ops.no-device"} <= set(mark.notes)


def test_ops_queued_before_recording_are_a_share_of_ops_and_of_busy_time(marks):
    # Correlations 8 and 9 are below 10, the first call's; they overlap for 20 ns and cover 80 of
    # the device's 280 busy ns.
    ops = f"{OPS}\n    2 kernel 0 0 0 0 50 - 8\n    3 kernel 0 0 1 30 80 - 9"
    (mark,) = marks(ops=ops).values()
    assert mark.code == "trust-window.ops-queued-before"
    assert mark.device_id == 0
    assert mark.numbers == {
        "ops": 2,
        "device_ops": 4,
        "ops_share": 0.5,
        "busy_ns": 80,
        "busy_share": 80 / 280,
    }
    assert "2 of 4 ops (50.0 %), 28.6 % of the busy time, were queued before" in mark.text
    assert "rocpd.ops-without-call" in mark.notes


def test_ops_outside_the_window_do_not_count(marks):
    ops = f"{OPS}\n    2 kernel 0 0 0 0 50 - 8\n    3 kernel 0 0 1 30 80 - 9"
    assert marks(ops=ops, window=Window(90, 400)) == {}
    (mark,) = marks(ops=ops, window=Window(60, 150)).values()
    # Op 3 from 60 to 80 and op 0 from 100 to 150.
    assert (mark.numbers["ops"], mark.numbers["device_ops"]) == (1, 2)
    assert (mark.numbers["busy_ns"], mark.numbers["busy_share"]) == (20, 20 / 70)


def test_ops_without_a_call_are_told_from_those_queued_before(marks):
    ops = f"{OPS}\n    2 kernel 0 0 0 0 50 - 8\n    3 kernel 0 0 1 500 600 - 12"
    ops += "\n    4 copy 0 0 1 600 700 - -"
    found = marks(ops=ops)
    assert set(found) == {"window.ops-queued-before", "ops.without-call"}
    mark = found["ops.without-call"]
    assert (mark.numbers["ops"], mark.numbers["device_ops"]) == (2, 5)
    assert (mark.numbers["busy_ns"], mark.numbers["busy_share"]) == (200, 200 / 450)
    # Neither says what one reader counts together.
    assert "rocpd.ops-without-call" not in {code for m in found.values() for code in m.notes}


def test_ops_of_a_process_without_any_call_have_another_mark(marks):
    ops = f"{OPS}\n    2 kernel 1 0 5 500 600 - 3"
    found = marks(ops=ops, processes="process_id\n 0\n 1")
    assert set(found) == {"evidence.not-collected"}
    mark = found["evidence.not-collected"]
    assert mark.numbers == {"kind": "calls", "processes": 1, "trace_processes": 2}
    assert mark.touches.parts == {"unknown"}


@pytest.mark.parametrize(
    ("collected", "kinds"),
    [
        (None, {"ranges"}),
        ([["ops", "calls"]], {"ranges"}),
        # Switched on, and nobody used any.
        ([["ops", "calls", "ranges"]], set()),
    ],
)
def test_a_kind_that_was_not_collected_is_told_from_one_that_did_not_happen(
    marks, collected, kinds
):
    found = marks(ranges="", collected=collected)
    assert {mark.numbers["kind"] for mark in found.values()} == kinds
    # Without ranges a host that had nothing to do looks like one that works.
    touched = [mark.touches.parts for mark in found.values()]
    assert touched == [{"host-late", "host-blocked"}] * len(kinds)


def numbered(numbers, prefix="hip"):
    """Calls of one process with these correlation numbers; call `i` starts at 50 + 200 × i."""
    header = "call_id process_id thread_id name kind start_ns end_ns correlation_id"
    rows = [
        f"{i} 0 7 {prefix}LaunchKernel launch {50 + 200 * i} {60 + 200 * i} {number}"
        for i, number in enumerate(numbers)
    ]
    return "\n".join([header, *rows])


# 10 to 50 without 20, 21 and 22. The 11th call, number 23, starts at 2050 ns.
WITHOUT_THREE = [n for n in range(10, 51) if n not in {20, 21, 22}]


def test_numbers_missing_from_a_row_are_lost_calls(marks):
    (mark,) = marks(calls=numbered(WITHOUT_THREE)).values()
    assert mark.code == "trust-calls.lost"
    assert mark.numbers == {
        "lost_calls": 3,
        "recorded_calls": 38,
        "lost_share": 3 / 41,
        "processes": 1,
    }
    assert mark.touches.part("host-late")
    assert not mark.touches.part("busy")


def test_numbers_of_markers_are_no_loss(marks):
    # The marker at 0 has number 9; two lie between the 10th call, at 1850 ns, and the 11th.
    ranges = f"{RANGES}\n 1 marker 0 7 a 1900 1910\n 2 marker 0 7 b 1950 1960"
    mark = marks(calls=numbered(WITHOUT_THREE), ranges=ranges)["calls.lost"]
    assert mark.numbers["lost_calls"] == 1
    ranges += "\n 3 marker 0 7 c 1970 1980"
    assert marks(calls=numbered(WITHOUT_THREE), ranges=ranges) == {}


def test_half_of_a_row_lost_in_one_piece_is_a_loss(marks):
    numbers = [*range(10, 30), *range(50, 70)]
    assert marks(calls=numbered(numbers))["calls.lost"].numbers["lost_calls"] == 20


def test_numbers_of_cuda_tell_nothing(marks):
    assert marks(calls=numbered([10, 11, *range(14, 100, 3)], "cuda")) == {}


def test_the_order_of_calls_does_not_make_numbers_missing(marks):
    assert marks(calls=numbered([*range(10, 20), 21, 20, *range(22, 60)])) == {}


def test_ops_before_their_calls_name_the_largest_lead(marks):
    # Op 1 starts at 300, its call at 304; op 0 at 100, its call at 101.
    calls = CALLS.replace("250       260", "304 310").replace("50        60", "101 110")
    (mark,) = marks(calls=calls).values()
    assert mark.code == "trust-clock.op-before-call"
    assert mark.numbers == {"ops": 2, "largest_lead_ns": 4}
    assert "idle-gaps.clock-skew" in mark.notes


WAIT_CALLS = f"""{CALLS}
    2  0  7  hipStreamWaitEvent      event_wait  262  263  12
    3  0  7  hipStreamBeginCapture   other       264  265  13
    4  0  7  hipStreamWaitEvent      event_wait  266  267  14
    5  0  7  hipStreamEndCapture     other       268  269  15
    6  0  7  hipStreamWaitEvent      event_wait  270  271  16
    7  0  8  hipStreamWaitEvent      event_wait  266  267  17"""
WAITS = "wait_id wait_call_id record_call_id pending_start_ns pending_end_ns"


def test_waits_without_a_record_are_counted_and_captured_ones_are_none(marks):
    # 2 is paired, 4 is captured, 6 has a row of no record, 7 of another thread has no row.
    waits = f"{WAITS}\n 0 2 1 263 400\n 1 6 - 271 -"
    (mark,) = marks(calls=WAIT_CALLS, waits=waits).values()
    assert mark.code == "trust-waits.unpaired"
    assert mark.numbers == {"unpaired_waits": 2, "asked_waits": 3}
    assert "record with" not in mark.text


def test_a_wait_whose_event_was_recorded_before_the_window_is_known_by_its_end(marks):
    waits = f"{WAITS}\n 0 2 1 263 400\n 1 6 - 271 300\n 2 7 1 267 -"
    assert marks(calls=WAIT_CALLS, waits=waits) == {}


def test_where_no_wait_was_recorded_the_mark_says_how_to_record_them(marks):
    mark = marks(calls=WAIT_CALLS)["waits.unpaired"]
    assert mark.numbers == {"unpaired_waits": 3, "asked_waits": 3}
    assert "record with rocprofv3" in mark.text


COPY_CALLS = (
    f"{CALLS}\n    2 0 7 hipMemcpyAsync copy 262 263 12\n    3 0 7 hipMemcpy copy 264 265 13"
)
COPIES = "call_id op_id process_id direction\n 2 - 0 host-to-device\n 3 - 0 host-to-host"


def test_copies_without_an_op_may_have_kept_the_device_busy(marks):
    (mark,) = marks(calls=COPY_CALLS, copies=COPIES).values()
    assert mark.code == "trust-copies.without-op"
    assert mark.numbers == {"copies": 1, "requested_copies": 1}
    assert mark.busy_is_at_least


def test_copies_without_an_op_where_copying_was_recorded_ran_as_kernels(marks):
    collected = [["ops", "calls", "copies", "ranges"]]
    assert marks(calls=COPY_CALLS, copies=COPIES, collected=collected) == {}


def test_a_model_is_marked_as_no_measurement(marks):
    mark = marks(devices="device_id arch\n 0 virtual-gfx950")["device.modelled"]
    assert mark.touches.part("busy")
    assert mark.touches.part("dispatch")
    assert mark.device_id is None
    assert marks(devices="device_id arch\n 0 gfx950") == {}


@pytest.mark.parametrize(
    ("traced_ns", "untraced_ns", "is_marked"), [(2.33e6, 1.69e6, True), (1.04e6, 1e6, False)]
)
def test_a_cycle_that_tracing_lengthens_marks_every_duration(
    marks, traced_ns, untraced_ns, is_marked
):
    found = marks(cycle_times=CycleTimes(traced_ns, untraced_ns))
    assert set(found) == ({"cycles.slowed-by-tracing"} if is_marked else set())
    for mark in found.values():
        assert mark.numbers["slowdown"] == pytest.approx(1.3787, abs=1e-4)
        assert "2.33 ms under the profiler and 1.69 ms without it (1.379×)" in mark.text


def test_cycle_times_stay_with_a_run_directory_and_the_worst_of_several_counts(frame, tmp_path):
    frames = {"ops": frame("ops", OPS), "processes": frame("processes", PROCESSES)}
    trace = Trace.from_frames(frames, notes=[], sources=["t"], format_name="kineto")
    write_run(trace, tmp_path / "plain", force=False)
    trace.cycle_times = CycleTimes(3.0, 2.0)
    write_run(trace, tmp_path / "timed", force=False)
    plain, timed = (read_trace([tmp_path / name]) for name in ("plain", "timed"))
    assert plain.cycle_times is None
    assert timed.cycle_times == CycleTimes(3.0, 2.0)
    timed_twice = read_trace([tmp_path / "timed"])
    timed_twice.cycle_times = CycleTimes(5.0, 2.0)
    assert join_traces([plain, timed, timed_twice]).cycle_times == CycleTimes(5.0, 2.0)
