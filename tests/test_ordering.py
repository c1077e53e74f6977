"""What orders two pieces of work, rule by rule, worked out by hand.

A program is a line per call: its label, the thread, what it does, the stream and the event. `!` after
what it does says that a marker names it, too; `gone` is a call that the trace lacks.
"""

import polars as pl
import pytest

from tracekit.ordering import host_calls, ties
from tracekit.tables.catalog import TABLES

NAMES = {
    "launch": "hipLaunchKernel",
    "copy": "hipMemcpyAsync",
    "event_record": "hipEventRecord",
    "event_wait": "hipStreamWaitEvent",
    "event_sync": "hipEventSynchronize",
    "event_query": "hipEventQuery",
    "stream_sync": "hipStreamSynchronize",
    "device_sync": "hipDeviceSynchronize",
    "free": "hipFree",
    "callback": "hipLaunchHostFunc",
    "malloc": "hipMalloc",
}
OTHERS = {
    "destroy": "hipEventDestroy",
    "begin": "hipStreamBeginCapture",
    "end": "hipStreamEndCapture",
    "wait_value": "hipStreamWaitValue32",
}
# 0 is the null stream; 1 and 2 order with nothing; 5 blocks with it; of 7 it is not known.
STREAMS = "0 null\n1 nonblocking\n2 nonblocking\n3 nonblocking\n5 blocking\n7 -"


class Traced:
    """The tables of a hand-written program, and what is told of its work."""

    def __init__(
        self, frame, text, *, copies="", devices=1, process=None, ran="", paired="", starts=None
    ):
        rows = [line.split() for line in text.strip().splitlines()]
        self.labels = {row[0]: place for place, row in enumerate(rows)}
        process = process or {}
        calls = [
            "call_id process_id thread_id name kind start_ns end_ns correlation_id stream_id event_key"
        ]
        marks = ["range_id process_id thread_id time_ns statement event_key stream_id call_id"]
        numbers = {}
        for place, (label, thread, what, *rest) in enumerate(rows):
            stream, event = [*rest, "-", "-"][:2]
            kind, owner = what.rstrip("!"), process.get(label, 0)
            numbers[owner] = numbers.get(owner, 0) + 1
            if kind == "gone":
                continue
            name = NAMES.get(kind) or OTHERS[kind]
            kind = kind if kind in NAMES else "other"
            at = (starts or {}).get(label, 10 * place)
            calls.append(
                f"{place} {owner} {thread} {name} {kind} {at} {at + 5} {numbers[owner]} {stream} {event}"
            )
            if what.endswith("!"):
                said = kind.removeprefix("event_")
                marks.append(f"{place} {owner} {thread} {at} {said} {event} {stream} {place}")
        self.calls = frame("calls", "\n".join(calls))
        self.marks = frame("marks", "\n".join(marks))
        self.copies = TABLES["copies"].empty()
        if copies:
            header = "call_id is_blocking is_pinned direction\n"
            lines = [
                f"{self.labels[line.split()[0]]} {line.split(maxsplit=1)[1]}"
                for line in copies.splitlines()
            ]
            self.copies = frame("copies", header + "\n".join(lines))
        ops = [f"{n} kernel {owner} {n} 0 1 -" for n in range(devices) for owner in numbers]
        ops += [f"9 kernel 0 0 0 1 {self.labels[label]}" for label in ran]
        header = "op_id kind process_id device_id start_ns end_ns call_id"
        self.ops = frame("ops", "\n".join([header, *ops]))
        streams = "\n".join(f"{line} 0" for line in STREAMS.splitlines())
        self.streams = frame("streams", f"stream_id flags process_id\n{streams}")
        header = "wait_id wait_call_id record_call_id evidence"
        pairs = [line.split() for line in paired.splitlines()]
        waits = [
            f"{n} {self.labels[w]} {self.labels[r]} recorded" for n, (w, r) in enumerate(pairs)
        ]
        known = frame("waits", "\n".join([header, *waits])) if pairs else TABLES["waits"].empty()
        ranges = TABLES["ranges"].empty()
        self.host = host_calls(self.ops, self.calls, self.copies, self.marks, known, ranges)

    def tie(self, earlier, later):
        """Return the tie of two calls; an earlier one may be `(-1, stream)`: before recording."""
        of = dict(self.host.drop_nulls("call_id").select("call_id", "place").iter_rows())
        streams = dict(self.host.select("place", "stream_id").iter_rows())
        if isinstance(earlier, str):
            place = of[self.labels[earlier]]
            earlier = (place, streams[place])
        asked = pl.DataFrame(
            [(*earlier, of[self.labels[later]])],
            {"earlier_place": pl.Int64, "earlier_stream_id": pl.Int32, "later_place": pl.Int64},
            orient="row",
        )
        return ties(self.host, asked, self.ops, self.streams).item()


@pytest.fixture
def traced(frame):
    return lambda text, **more: Traced(frame, text, **more)


def test_work_of_one_stream_is_in_order_and_of_two_is_not(traced):
    found = traced("A 1 launch 1\nB 1 launch 1\nC 1 launch 2")
    assert found.tie("A", "B") == "stream"
    assert found.tie("A", "C") == "none"


def test_a_wait_orders_what_was_before_the_record_with_what_comes_after_the_wait(traced):
    found = traced(
        """
        A 1 launch 1
        R 1 event_record 1 77
        L 1 launch 1
        X 1 launch 2
        W 1 event_wait 2 77
        B 1 launch 2
        O 1 launch 3
        """
    )
    assert found.tie("A", "B") == "inferred-event"
    assert found.tie("L", "B") == "none"
    assert found.tie("A", "X") == "none"
    assert found.tie("A", "O") == "none"


def test_markers_on_both_sides_make_a_recorded_event_of_it(traced):
    text = "A 1 launch 1\nR 1 {} 1 77\nW 1 {} 2 77\nB 1 launch 2"
    assert traced(text.format("event_record!", "event_wait!")).tie("A", "B") == "recorded-event"
    assert traced(text.format("event_record!", "event_wait")).tie("A", "B") == "inferred-event"
    assert traced(text.format("event_record", "event_wait!")).tie("A", "B") == "inferred-event"


def test_waits_hand_on_what_was_waited_for(traced):
    found = traced(
        """
        A 1 launch 1
        R 1 event_record 1 77
        W 1 event_wait 2 77
        S 1 event_record 2 78
        V 1 event_wait 3 78
        B 1 launch 3
        """
    )
    assert found.tie("A", "B") == "inferred-event"


def test_a_wait_before_the_record_waits_for_none_that_comes_later(traced):
    found = traced(
        """
        A 1 launch 1
        W 1 event_wait 2 77
        L 1 launch 1
        R 1 event_record 1 77
        B 1 launch 2
        """
    )
    assert found.tie("L", "B") == "none"
    # Another one may have recorded it before.
    assert found.tie("A", "B") == "assumed"


@pytest.mark.parametrize("began", [0, 4])
def test_a_wait_that_began_before_the_record_it_is_for_comes_after_it(traced, began):
    # Places begin 10 ns apart and last 5: here the wait, of another thread, begins `began` ns
    # before the record or together with it, and both are inside the driver at once.
    text = """
        A 1 launch 1
        W 2 event_wait 2 -
        R 1 event_record 1 -
        L 1 launch 1
        B 2 launch 2
        """
    found = traced(text, paired="W R", starts={"W": 20 - began})
    assert found.tie("A", "B") == "recorded-event"
    assert found.tie("L", "B") != "recorded-event"


@pytest.mark.parametrize("pair", ["W R", "W W"])
def test_a_wait_that_ended_before_the_record_it_is_for_orders_nothing_for_sure(traced, pair):
    text = "A 1 launch 1\nW 2 event_wait 2 -\nR 1 event_record 1 -\nB 2 launch 2"
    assert traced(text, paired=pair).tie("A", "B") == "assumed"


def test_of_several_records_the_last_before_the_wait_counts(traced):
    found = traced(
        """
        A 1 launch 1
        R 1 event_record 1 77
        C 1 launch 3
        S 1 event_record 3 77
        W 1 event_wait 2 77
        B 1 launch 2
        T 1 event_record 1 77
        """
    )
    assert found.tie("C", "B") == "inferred-event"
    assert found.tie("A", "B") == "none"


def test_a_handle_used_again_is_not_taken_for_the_destroyed_event(traced):
    text = "A 1 launch 1\nR 1 event_record 1 77\nD 1 {} - 77\nW 1 event_wait 2 77\nB 1 launch 2"
    assert traced(text.format("destroy")).tie("A", "B") == "assumed"
    assert traced(text.format("malloc")).tie("A", "B") == "inferred-event"


def test_a_record_behind_a_missing_call_may_not_be_the_last_one(traced):
    text = "A 1 launch 1\nR 1 event_record 1 77\nG 1 {}\nW 1 event_wait 2 77\nB 1 launch 2"
    assert traced(text.format("gone")).tie("A", "B") == "assumed"


@pytest.mark.parametrize(
    ("sync", "others"),
    [("event_sync - 77", "none"), ("stream_sync 1", "none"), ("device_sync", "host")],
)
def test_what_the_host_has_waited_for_is_done_before_what_it_submits_then(traced, sync, others):
    found = traced(
        f"""
        A 1 launch 1
        O 1 launch 3
        R 1 event_record 1 77
        X 1 launch 2
        S 1 {sync}
        B 1 launch 2
        """
    )
    assert found.tie("A", "B") == "host"
    assert found.tie("O", "B") == others
    assert found.tie("A", "X") == "none"


def test_an_event_sync_is_not_for_what_came_after_the_record(traced):
    found = traced(
        "R 1 event_record 1 77\nA 1 launch 1\nS 1 event_sync - 77\nB 1 launch 2",
    )
    assert found.tie("A", "B") == "none"


def test_of_two_devices_nobody_knows_which_one_the_host_waited_for(traced):
    text = "A 1 launch 1\nS 1 device_sync\nB 1 launch 2"
    assert traced(text, devices=2).tie("A", "B") == "assumed"


@pytest.mark.parametrize(
    ("how", "tie"),
    [
        # is_blocking, is_pinned, direction
        ("true - host-to-device", "host"),
        ("- false device-to-host", "host"),
        ("- - device-to-host", "assumed"),
        ("- true device-to-host", "none"),
        ("false true device-to-host", "none"),
        ("- true host-to-device", "none"),
        ("- false host-to-device", "none"),
        ("- - device-to-device", "none"),
        ("- - -", "assumed"),
    ],
)
def test_a_copy_is_done_when_its_call_returns_where_it_blocks(traced, how, tie):
    text = "A 1 launch 1\nC 1 copy 1\nB 1 launch 2"
    found = traced(text, copies=f"C {how}")
    assert found.tie("C", "B") == tie
    assert found.tie("A", "B") == tie
    assert found.tie("A", "C") == "stream"


@pytest.mark.parametrize(("stream", "tie"), [(5, "stream"), (1, "none"), (7, "assumed")])
def test_the_null_stream_and_blocking_ones_wait_for_each_other(traced, stream, tie):
    found = traced(f"A 1 launch {stream}\nB 1 launch 0\nC 1 launch {stream}")
    assert found.tie("A", "B") == tie
    assert found.tie("B", "C") == tie


def test_two_blocking_streams_are_in_order_only_by_work_of_the_null_stream_between(traced):
    found = traced("A 1 launch 5\nB 1 launch 7\nN 1 launch 0\nC 1 launch 7\nD 1 launch 5")
    assert found.tie("A", "B") == "none"
    assert found.tie("A", "C") == "assumed"
    assert found.tie("A", "N") == "stream"
    assert found.tie("N", "D") == "stream"


@pytest.mark.parametrize(("stream", "tie"), [(5, "host"), (1, "none"), (7, "assumed")])
def test_waiting_for_the_null_stream_is_waiting_for_blocking_ones(traced, stream, tie):
    found = traced(f"A 1 launch {stream}\nN 1 launch 0\nS 1 stream_sync 0\nB 1 launch 2")
    assert found.tie("A", "B") == tie
    assert found.tie("N", "B") == "host"


def test_what_another_thread_has_waited_for_is_assumed(traced):
    found = traced("A 1 launch 1\nS 1 stream_sync 1\nB 2 launch 2")
    assert found.tie("A", "B") == "assumed"
    earlier = traced("A 1 launch 1\nB 2 launch 2\nS 1 stream_sync 1")
    assert earlier.tie("A", "B") == "none"


@pytest.mark.parametrize(("mark", "tie"), [("!", "host"), ("", "assumed")])
def test_a_thread_that_waits_for_an_event_of_another_knows_what_that_had_waited_for(
    traced, mark, tie
):
    found = traced(
        f"""
        A 1 launch 1
        S 1 stream_sync 1
        R 1 event_record{mark} 2 77
        L 1 launch 1
        W 2 event_wait{mark} 3 77
        B 2 launch 3
        C 2 launch 5
        """
    )
    # What waits for the event in its stream needs nothing that threads tell each other.
    assert found.tie("A", "B") == "host"
    assert found.tie("A", "C") == tie
    assert found.tie("L", "C") == "none"


def test_a_stream_handed_from_thread_to_thread_keeps_what_the_first_had_waited_for(traced):
    found = traced("A 1 launch 1\nS 1 stream_sync 1\nX 1 launch 2\nB 2 launch 2\nC 2 launch 3")
    assert found.tie("A", "B") == "host"
    assert found.tie("A", "C") == "assumed"


def test_a_wait_without_a_record_may_be_for_anything_before_it(traced):
    found = traced("A 1 launch 1\nW 1 event_wait 2 77\nL 1 launch 1\nB 1 launch 2")
    assert found.tie("A", "B") == "assumed"
    assert found.tie("L", "B") == "none"


def test_a_marked_wait_without_a_record_is_for_one_from_before_recording_began(traced):
    found = traced("A 1 launch 1\nW 1 event_wait! 2 77\nB 1 launch 2")
    assert found.tie("A", "B") == "none"
    assert found.tie((-1, 1), "B") == "assumed"


@pytest.mark.parametrize(
    "what",
    ["event_query - 99", "free", "callback 3", "wait_value 3", "gone", "stream_sync -", "copy -"],
)
def test_what_may_have_ordered_everything_makes_an_order_assumed(traced, what):
    found = traced(f"A 1 launch 1\nX 1 {what}\nL 1 launch 1\nB 1 launch 2")
    assert found.tie("A", "B") == "assumed"
    assert found.tie("L", "B") == "none"


def test_an_event_query_may_have_found_its_record_done_and_nothing_else(traced):
    found = traced(
        "A 1 launch 1\nO 1 launch 3\nR 1 event_record 1 77\nQ 1 event_query - 77\nB 1 launch 2"
    )
    assert found.tie("A", "B") == "assumed"
    assert found.tie("O", "B") == "none"


def test_what_was_captured_orders_nothing(traced):
    found = traced(
        """
        A 1 launch 1
        G 1 begin 1
        R 1 event_record 1 77
        W 1 event_wait 2 77
        E 1 end 1
        B 1 launch 2
        """
    )
    assert found.tie("A", "B") == "none"
    assert found.host["kind"].to_list() == ["launch", "launch"]


def test_a_capture_is_of_its_own_thread(traced):
    found = traced("G 1 begin 1\nA 2 launch 3\nR 2 event_record 3 77\nE 1 end 1")
    assert found.host["kind"].to_list() == ["launch", "event_record"]


def test_where_the_begin_or_end_of_a_capture_is_missing_its_calls_may_have_run(traced):
    captured = "R 1 event_record 1 77\nW 1 event_wait 2 77"
    no_begin = traced(f"A 1 launch 1\nG 1 gone\n{captured}\nE 1 end 1\nB 1 launch 2")
    assert no_begin.tie("A", "B") == "assumed"
    assert no_begin.host["kind"].to_list() == ["launch", *["lost"] * 3, "launch"]
    no_end = traced(
        f"A 1 launch 1\nG 1 begin 1\nX 1 launch 1\nE 1 gone\n{captured}\nB 1 launch 2", ran="B"
    )
    assert no_end.tie("A", "B") == "assumed"
    assert no_end.host["kind"].to_list() == ["launch", *["lost"] * 3, "launch"]


def test_a_capture_of_which_no_call_is_missing_is_left_out_although_others_are(traced):
    found = traced(
        """
        A 1 launch 1
        X 1 gone
        G 1 begin 1
        R 1 event_record 1 77
        W 1 event_wait 2 77
        E 1 end 1
        L 1 launch 1
        B 1 launch 2
        """
    )
    assert found.host["kind"].to_list() == ["launch", "lost", "launch", "launch"]
    assert found.tie("L", "B") == "none"


def test_work_from_before_recording_began_is_ordered_as_all_other(traced):
    found = traced("B 1 launch 1\nC 1 launch 2\nS 1 device_sync\nD 1 launch 2")
    assert found.tie((-1, 1), "B") == "stream"
    assert found.tie((-1, 1), "C") == "none"
    assert found.tie((-1, 1), "D") == "host"


def test_what_one_process_waits_for_tells_another_nothing(traced):
    found = traced(
        "A 1 launch 1\nR 1 event_record 1 77\nS 1 device_sync\nW 1 event_wait 2 77\nB 1 launch 2",
        process={"S": 1, "R": 1},
    )
    # The wait's record is another process's, and so not known.
    assert found.tie("A", "B") == "assumed"
    plain = traced("A 1 launch 1\nS 1 device_sync\nB 1 launch 2", process={"S": 1})
    assert plain.tie("A", "B") == "none"


def test_of_a_stream_that_is_not_known_nothing_is_told(traced):
    found = traced("A 1 launch 1\nB 1 launch -\nC 1 launch 1")
    assert found.tie("A", "B") is None
    assert found.tie("B", "C") is None
