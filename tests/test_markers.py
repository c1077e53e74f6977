"""What markers say goes into tables, at the call they speak of, and nowhere else.

Markers are written as `thread start end text`, calls as `call_id thread start end kind`; `-` is an
instant. What is expected was worked out by hand from docs/markers.md.
"""

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from instrumented_runtime.marks import parse
from tracekit.markers import with_markers
from tracekit.markers.buffers import pinned_copies
from tracekit.markers.statements import parsed_texts
from tracekit.tables.catalog import TABLES
from tracekit.trace import CycleTimes, Trace

PLAN = "7 0 - tk1 buffer 0xa addr=0x1000 size=64 name=plan"


@pytest.fixture
def read(frame):
    """Return `read(markers, calls, **tables as text)`: the trace with its markers read."""

    def build(markers, calls="", **texts):
        lines = [line.split(maxsplit=3) for line in markers.strip().splitlines()]
        ranges = pl.DataFrame(
            [
                (row, "marker", 0, int(thread), text, int(start), int(start if end == "-" else end))
                for row, (thread, start, end, text) in enumerate(lines)
            ],
            {name: TABLES["ranges"].schema[name] for name in list(TABLES["ranges"].schema)[:7]},
            orient="row",
        )
        header = "call_id thread_id start_ns end_ns kind"
        rows = [line.split() for line in calls.strip().splitlines()]
        wide = max((len(row) for row in rows), default=5)
        header += "".join([" stream_id", " event_key", " correlation_id"][: wide - 5])
        called = frame("calls", "\n".join([header, *map(" ".join, rows)]))
        frames = {name: frame(name, text) for name, text in texts.items()} | {
            "ranges": ranges,
            "calls": called.with_columns(process_id=pl.lit(0, pl.Int32)),
        }
        trace = Trace.from_frames(frames, notes=[], sources=["a"], format_name="rocpd")
        return with_markers(trace)

    return build


def accesses(trace):
    """Return the accesses as `call buffer@address+size mode`, in order."""
    return [
        f"{call} {buffer}@{'-' if address is None else hex(address)}+{size or '-'} {mode[0]}"
        for call, buffer, address, size, mode in trace.table("accesses").rows()
    ]


def marks(trace):
    """Return the marks as statement, event, stream, call, in order."""
    return trace.table("marks").select("statement", "event_key", "stream_id", "call_id").rows()


def notes(trace):
    return {note.code: note.count for note in trace.notes}


def test_what_tracing_costs_stays_with_a_trace_whose_markers_are_read(read):
    trace = read(PLAN)
    trace.cycle_times = CycleTimes(2e6, 1e6)
    assert with_markers(trace).cycle_times == trace.cycle_times


def test_a_trace_without_markers_is_the_same_trace(read, frame):
    ranges = frame("ranges", "range_id text start_ns end_ns\n 0 forward 0 9\n 1 tk12 1 1\n 2 - 2 2")
    trace = Trace.from_frames({"ranges": ranges}, notes=[], sources=[], format_name="rpd")
    assert with_markers(trace) is trace
    empty = Trace.from_frames({}, notes=[], sources=[], format_name="rpd")
    assert with_markers(empty) is empty


def test_all_uses_between_two_calls_are_of_the_later_one_and_what_a_framework_adds_is_passed_over(
    read,
):
    trace = read(
        f"""
        {PLAN}
        7 10 - tk1 use 0xa r
        7 30 - tk1 use 0xa w
        7 35 38 tk1 use 0xb r
        7 60 - tk1 use 0xb w
        """,
        """
        0 7 10 20 launch
        1 7 39 40 other
        2 7 41 42 malloc
        3 7 43 44 event_query
        4 7 50 60 copy
        5 7 70 80 fill
        """,
    )
    # At one instant the marker comes first: 10 is of call 0. Nothing was said of 0xb.
    assert accesses(trace) == [
        "0 plan@0x1000+64 r",
        "4 plan@0x1000+64 w",
        "4 0xb@-+- r",
        "5 0xb@-+- w",
    ]
    assert notes(trace) == {}


@pytest.mark.parametrize(
    "between",
    [
        "calls: 1 7 20 25 event_record",
        "calls: 1 7 20 25 event_wait",
        "calls: 1 7 20 25 event_sync",
        "calls: 1 7 20 25 stream_sync",
        "calls: 1 7 20 25 device_sync",
        "calls: 1 7 20 25 graph_launch",
        "7 20 - tk1 record 0xe stream=0x5",
        "7 20 - tk1 wait 0xe stream=0x5",
        "7 20 - tk1 sync 0xe",
        "7 20 - tk1 replay 0x1",
        "7 20 50 tk1 step 2",
        "7 5 20 tk1 step 1",
        "7 30 - tk1 record 0xe stream=0x5",
    ],
)
def test_a_use_whose_call_is_missing_is_not_given_to_the_next_call(read, between):
    marker, call = ("", between[7:]) if between.startswith("calls: ") else (between, "")
    trace = read(f"{PLAN}\n7 10 - tk1 use 0xa w\n{marker}", f"{call}\n2 7 30 40 launch")
    assert accesses(trace) == []
    assert notes(trace)["markers.use-without-call"] == (2 if "replay" in between else 1)


def test_what_another_thread_does_is_no_evidence(read):
    trace = read(
        f"""
        {PLAN}
        7 10 - tk1 use 0xa r
        8 11 - tk1 use 0xa w
        8 12 - tk1 record 0xe stream=0x5
        """,
        "0 8 10 11 event_record\n1 7 20 30 launch\n2 8 25 35 launch",
    )
    # Thread 8 said `record` after its use: that use's call is missing.
    assert accesses(trace) == ["1 plan@0x1000+64 r"]


def test_before_a_step_and_at_its_edge_a_use_counts(read):
    trace = read(
        f"{PLAN}\n7 5 10 tk1 step 1\n7 10 90 tk1 step 2\n7 10 - tk1 use 0xa r", "0 7 10 20 launch"
    )
    assert accesses(trace) == ["0 plan@0x1000+64 r"]


def test_two_calls_at_one_instant_leave_it_open_which_was_meant(read):
    trace = read(f"{PLAN}\n7 10 - tk1 use 0xa r", "0 7 10 10 launch\n1 7 10 20 launch")
    assert accesses(trace) == []


@pytest.mark.parametrize(
    ("number", "found"), [(101, []), (99, ["1 plan@0x1000+64 r"]), (103, ["1 plan@0x1000+64 r"])]
)
def test_an_op_without_its_call_shows_that_a_launch_before_the_next_is_missing(read, number, found):
    trace = read(
        f"{PLAN}\n7 10 - tk1 use 0xa r",
        "0 7 0 5 launch 1 - 100\n1 7 30 40 launch 1 - 102",
        ops=f"op_id process_id correlation_id call_id\n0 0 {number} -\n1 0 102 1",
    )
    assert accesses(trace) == found


def test_a_use_that_names_another_stream_than_its_neighbour_is_of_a_call_that_is_missing(read):
    trace = read(
        f"{PLAN}\n7 10 - tk1 use 0xa r stream=0x5\n7 20 - tk1 use 0xa w stream=0x6",
        "0 7 30 40 launch",
    )
    assert accesses(trace) == ["0 plan@0x1000+64 w"]


def test_a_buffer_lies_where_it_was_last_said_to_lie_in_its_process(read):
    trace = read(
        """
        7 10 - tk1 use 0xa r
        8 20 - tk1 buffer 0xa addr=0x1000 size=64 name=old
        7 30 - tk1 use 0xa r
        7 50 - tk1 buffer 0xa addr=0x2000 size=32
        7 50 - tk1 use 0xa r
        """,
        "0 7 11 12 launch\n1 7 31 32 launch\n2 7 51 52 launch",
    )
    assert accesses(trace) == ["0 0xa@-+- r", "1 old@0x1000+64 r", "2 0xa@0x2000+32 r"]


def test_a_replay_uses_all_that_was_declared_of_its_graph(read):
    trace = read(
        f"""
        {PLAN}
        8 1 - tk1 graph 0x3 declares r:0xa w:0xffffffffffffffff
        7 2 - tk1 graph 0x3 declares w:0xa
        7 3 - tk1 graph 0x4 declares
        7 10 - tk1 replay 0x3
        7 30 - tk1 replay 0x4
        7 50 - tk1 replay 0x5
        """,
        "0 7 11 12 graph_launch\n1 7 31 32 graph_launch\n2 7 51 52 graph_launch",
    )
    assert accesses(trace) == [
        "0 plan@0x1000+64 r",
        "0 0xffffffffffffffff@-+- w",
        "0 plan@0x1000+64 w",
    ]
    assert notes(trace) == {"markers.replay-without-graph": 1}


def test_of_two_replays_before_one_launch_the_first_has_lost_its_own(read):
    declared = "7 0 - tk1 graph 0x1 declares r:0xa\n7 0 - tk1 graph 0x2 declares w:0xb"
    late = f"{declared}\n7 10 - tk1 replay 0x1\n7 20 - tk1 replay 0x2"
    assert accesses(read(late, "0 7 30 40 graph_launch")) == ["0 0xb@-+- w"]
    at_once = f"{declared}\n7 20 - tk1 replay 0x1\n7 20 - tk1 replay 0x2"
    assert accesses(read(at_once, "0 7 30 40 graph_launch")) == []
    used = f"{declared}\n7 10 - tk1 replay 0x1\n7 20 - tk1 use 0xa r"
    assert accesses(read(used, "0 7 30 40 graph_launch")) == []


def test_records_and_syncs_are_of_the_last_call_and_waits_of_the_next(read):
    trace = read(
        """
        7 20 - tk1 record 0xe stream=0x5
        7 20 - tk1 wait 0xe stream=0x6
        7 40 - tk1 sync 0xe
        8 40 - tk1 sync 0xf
        7 70 - tk1 record 0xe stream=0x5
        """,
        """
        0 7 10 20 event_record 1
        1 7 20 30 event_wait 2
        2 7 31 40 event_sync -
        3 7 50 60 event_record 1
        4 7 61 65 other -
        """,
        streams="stream_id process_id\n1 0\n2 0",
    )
    assert marks(trace) == [
        ("record", 14, 1, 0),
        ("wait", 14, 2, 1),
        ("sync", 14, None, 2),
        ("sync", 15, None, None),
        ("record", 14, 1, 3),
    ]
    assert trace.table("calls")["event_key"].to_list() == [14, 14, 14, 14, None]
    assert trace.table("marks")["time_ns"].to_list() == [20, 20, 40, 40, 70]
    assert trace.table("marks")["range_id"].to_list() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("markers", "calls"),
    [
        ("7 40 - tk1 record 0xe stream=0x5", "0 7 10 20 event_record\n1 7 30 35 launch"),
        ("7 40 - tk1 record 0xe stream=0x5", "0 7 10 20 event_record\n1 7 30 35 event_query"),
        ("7 40 - tk1 record 0xe stream=0x5", "0 7 10 41 event_record"),
        ("7 40 - tk1 record 0xe stream=0x5", "0 8 10 20 event_record"),
        ("7 40 - tk1 record 0xe stream=0x5", "0 7 10 20 event_record\n1 7 20 20 launch"),
        ("7 40 - tk1 record 0xe stream=0x5", "0 7 20 20 launch\n1 7 10 20 event_record"),
        ("7 30 - tk1 use 0xa r\n7 40 - tk1 record 0xe stream=0x5", "0 7 10 20 event_record"),
        ("7 40 - tk1 sync 0xe", "0 7 10 20 event_record"),
        ("7 5 - tk1 wait 0xe stream=0x5", "0 7 6 7 launch\n1 7 10 20 event_wait"),
        ("7 5 - tk1 wait 0xe stream=0x5\n7 6 - tk1 use 0xa r", "1 7 10 20 event_wait"),
    ],
)
def test_an_event_marker_whose_call_is_missing_stays_and_speaks_of_none(read, markers, calls):
    trace = read(markers, calls)
    ((_, event, _, call),) = marks(trace)
    assert (event, call) == (14, None)
    assert trace.table("calls")["event_key"].null_count() == trace.table("calls").height


def test_two_markers_do_not_share_the_call_of_one(read):
    trace = read(
        "7 20 - tk1 record 0xe stream=0x5\n7 40 - tk1 record 0xf stream=0x5",
        "0 7 10 20 event_record",
    )
    assert [call for *_, call in marks(trace)] == [0, None]
    trace = read(
        "7 20 - tk1 record 0xe stream=0x5\n7 20 - tk1 record 0xf stream=0x5",
        "0 7 10 20 event_record",
    )
    assert [call for *_, call in marks(trace)] == [None, None]


STREAMS = "stream_id process_id handle flags name\n0 0 5 - -\n1 0 6 blocking side\n2 0 7 - -"


def test_a_stream_is_known_by_the_calls_and_ops_beside_its_handle(read):
    trace = read(
        """
        7 0 - tk1 stream 0x5 flags=nonblocking device=0 name=forward
        7 0 - tk1 stream 0x6 flags=nonblocking device=0 name=copies
        7 10 - tk1 use 0xa r stream=0x5
        7 20 - tk1 replay 0x1 stream=0x0
        7 40 - tk1 record 0xe stream=0x6
        7 50 - tk1 record 0xf stream=0x5
        """,
        """
        0 7 10 15 launch       -
        1 7 20 25 graph_launch 2
        2 7 30 40 event_record 1
        3 7 45 50 event_record -
        """,
        ops="op_id process_id call_id stream_id graph_launch_id\n0 0 0 0 -\n1 0 1 0 1",
        streams=STREAMS,
    )
    # The number in `handle` proves nothing: 0x5 is stream 0 by its kernel, 0x6 is stream 1.
    streams = trace.table("streams").select("stream_id", "flags", "name").rows()
    assert streams == [(0, "nonblocking", "forward"), (1, "blocking", "side"), (2, "null", None)]
    assert trace.table("calls")["stream_id"].to_list() == [0, 2, 1, 0]
    assert notes(trace) == {"markers.stream-contradicts": 1, "markers.replay-without-graph": 1}


def test_the_ops_of_a_graph_do_not_say_which_stream_it_went_to(read):
    trace = read(
        "7 0 - tk1 stream 0x5 flags=blocking device=0\n7 20 - tk1 replay 0x1 stream=0x5",
        "1 7 20 25 graph_launch -",
        ops="op_id process_id call_id stream_id graph_launch_id\n1 0 1 0 1",
        streams=STREAMS,
    )
    assert trace.table("streams")["flags"].to_list() == [None, "blocking", None]
    assert trace.table("calls")["stream_id"].to_list() == [None]


def votes(handles):
    """Return markers and calls of launches in turn: each `handle:stream` one of them."""
    pairs = [pair.split(":") for pair in handles.split()]
    markers = [f"7 {10 * n} - tk1 use 0xa r stream={handle}" for n, (handle, _) in enumerate(pairs)]
    calls = [f"{n} 7 {10 * n} {10 * n + 5} launch {stream}" for n, (_, stream) in enumerate(pairs)]
    flags = [
        "7 0 - tk1 stream 0x5 flags=nonblocking device=0",
        "7 0 - tk1 stream 0x9 flags=blocking device=0",
    ]
    return "\n".join([*flags, *markers]), "\n".join(calls)


@pytest.mark.parametrize(
    ("said", "flags", "unclear"),
    [
        ("0x5:0 0x9:2", ["nonblocking", "blocking"], 0),
        ("0x5:0 0x5:2", [None, None], 1),
        ("0x5:0 0x9:0", [None, None], 2),
        ("0x5:0 " * 9 + "0x5:2", ["nonblocking", None], 0),
        ("0x5:0 " * 8 + "0x5:2", [None, None], 1),
    ],
)
def test_a_handle_that_is_several_streams_or_shares_one_is_taken_for_none(
    read, said, flags, unclear
):
    trace = read(*votes(said), streams=STREAMS)
    assert trace.table("streams")["flags"].to_list() == [flags[0], "blocking", flags[1]]
    assert notes(trace).get("markers.stream-unclear", 0) == unclear


def test_a_use_in_another_stream_than_its_call_is_not_of_that_call(read):
    trace = read(*votes("0x5:0 " * 10 + "0x5:2"), streams=STREAMS)
    assert [call for call, *_ in trace.table("accesses").rows()] == list(range(10))
    assert notes(trace) == {"markers.use-without-call": 1}


def test_a_stream_of_which_two_things_were_said_is_left_as_it_was(read):
    markers, calls = votes("0x5:0")
    trace = read(f"{markers}\n7 1 - tk1 stream 0x5 flags=blocking device=0", calls, streams=STREAMS)
    assert trace.table("streams")["flags"].to_list() == [None, "blocking", None]


def test_events_that_a_format_numbers_on_its_own_are_not_mixed_with_handles(read):
    markers = "7 20 - tk1 record 0xe stream=0x5\n7 40 - tk1 record 0xf stream=0x5"
    own = read(markers, "0 7 10 20 event_record 1 3\n1 7 30 40 event_record 1 -")
    assert own.table("calls")["event_key"].to_list() == [3, None]
    assert [call for *_, call in marks(own)] == [0, 1]
    same = read(markers, "0 7 10 20 event_record 1 14\n1 7 30 40 event_record 1 -")
    assert same.table("calls")["event_key"].to_list() == [14, 15]


def test_an_event_that_the_call_denies_is_not_of_that_call(read):
    count = 10
    markers = "\n".join(f"7 {10 * n + 5} - tk1 record 0xe stream=0x5" for n in range(count + 1))
    calls = [f"{n} 7 {10 * n} {10 * n + 5} event_record 1 14" for n in range(count)]
    calls.append(f"{count} 7 {10 * count} {10 * count + 5} event_record 1 99")
    trace = read(markers, "\n".join(calls))
    assert [call for *_, call in marks(trace)] == [*range(count), None]


def test_a_copy_is_pinned_as_the_buffer_last_said_to_hold_its_host_side(read):
    trace = read(
        """
        7 0 - tk1 buffer 0x100 addr=0x100 size=64 place=pageable
        7 0 - tk1 buffer 0x800 addr=0x800 size=64 place=device
        7 5 - tk1 buffer 0x80 addr=0x80 size=1024 place=pinned
        """,
        """
        0 7 1 2 copy
        1 7 10 20 copy
        2 7 30 40 copy
        3 7 50 60 copy
        4 7 70 80 copy
        5 7 90 99 copy
        """,
        copies="""
        call_id process_id direction        dst_address src_address copied_bytes is_pinned
        0       0          host-to-device   2048        272         16           -
        1       0          host-to-device   2048        272         16           -
        2       0          device-to-host   1150        2048        2            -
        3       0          device-to-host   1150        2048        3            -
        4       0          device-to-device 272         272         16           -
        5       0          host-to-device   2048        272         16           false
        """,
    )
    # 272 lies in both buffers, from 5 on in the later one; that one ends at 1152.
    expected = [False, True, True, None, None, False]
    assert trace.table("copies")["is_pinned"].to_list() == expected


def test_many_copies_from_many_buffers_take_memory_for_the_matches_only():
    # 20,000 buffers of 64 bytes side by side, each sent once: all pairs would be 400 million.
    many = pl.DataFrame({"call_id": range(20_000)}).with_columns(
        process_id=pl.lit(0, pl.Int32), address=(64 * pl.col("call_id")).cast(pl.UInt64)
    )
    said = many.select(
        "process_id",
        verb=pl.lit("buffer"),
        addr="address",
        size=pl.lit(64, pl.Int64),
        place=pl.lit("pinned"),
        start_ns=pl.lit(0, pl.Int64),
    )
    copies = many.select(
        "call_id",
        "process_id",
        src_address="address",
        copied_bytes=pl.lit(64),
        direction=pl.lit("host-to-device"),
    )
    calls = many.select("call_id", start_ns=pl.lit(5, pl.Int64))
    found = pinned_copies(TABLES["copies"].conform(copies), calls, said)["is_pinned"]
    assert found.sum() == many.height


def test_the_addresses_of_a_copy_are_not_made_up_and_its_stream_is_filled(read):
    trace = read(
        f"{PLAN}\n7 10 - tk1 use 0xa w stream=0x5\n7 20 - tk1 use 0xa r stream=0x5",
        "0 7 10 15 copy -\n1 7 20 25 launch 2",
        copies="call_id process_id\n0 0",
        streams=STREAMS,
    )
    assert trace.table("copies").select("dst_address", "src_address", "stream_id").rows() == [
        (None, None, 2)
    ]


def test_text_that_begins_like_ours_and_is_not_is_counted_and_left_alone(read):
    trace = read("7 1 - tk1 use 0xa\n7 2 - tk1\n7 3 - tk1-model loaded\n7 4 - tk1 fly 0x1")
    assert notes(trace) == {"markers.unreadable": 3}
    assert trace.table("accesses").is_empty()


GOOD = [
    "tk1 stream 0x55d0 flags=nonblocking device=0 name=forward",
    "tk1 stream 0x0 device=0 flags=null",
    "tk1 step 12 kind=verify bs=8 tokens=26 waiting=3 free=1",
    "tk1 step 0 kind=a=b",
    "tk1 buffer 0x7f00 addr=0x7f00 size=4096 name=page_table place=pinned",
    "tk1 buffer 0xffffffffffffffff addr=0xffffffffffffffff size=999999999999999999",
    "tk1 use 0x7f00 r stream=0x55d0",
    "tk1 use 0x7f00 w why=so empty=",
    "tk1 graph 0x3 declares r:0x7f00 w:0x9f00 more=1",
    "tk1 graph 0x3 declares",
    "tk1 replay 0x3 stream=0x0",
    "tk1 record 0x66a0 stream=0x55d0",
    "tk1 wait 0x66a0 stream=0x5600",
    "tk1 sync 0x66a0",
    "tk1 step 1 kind=" + "k" * 64,
]


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from(GOOD),
    st.integers(0, 80),
    st.sampled_from(
        [
            "",
            " ",
            "=",
            "0",
            "x",
            "A",
            ";",
            '"',
            "\\",
            "\n",
            "\t",
            "é",
            "r",
            " a=1",
            " bs=2",
            " mode=r",
        ]
    ),
    st.integers(0, 2),
)
def test_a_text_is_read_if_and_only_if_the_runtime_that_writes_it_reads_it(
    text, place, inserted, removed
):
    changed = text[:place] + inserted + text[place + removed :]
    try:
        statement = parse(changed)
    except ValueError:
        statement = None
    rows = parsed_texts(pl.Series([changed], dtype=pl.String)).rows(named=True)
    assert len(rows) == (statement is not None)
    for row in rows:
        said = {
            key: statement.values.get(key)
            for key in ("mode", "flags", "name", "place", "addr", "size")
        }
        assert row["verb"] == statement.verb
        assert int(row["subject"], 0) == statement.subject
        assert {key: row[key] for key in said} == said
        stream = statement.values.get("stream")
        assert row["stream"] == (None if stream is None else hex(stream))


def test_every_text_of_the_grammar_is_read():
    assert sorted(parsed_texts(pl.Series(GOOD))["text"]) == sorted(GOOD)
    assert all(parse(text) for text in GOOD)


LAUNCHES = {"launch", "copy", "graph_launch"}
ACTIONS = st.tuples(
    st.sampled_from(
        ["launch", "launch", "copy", "graph_launch", "record", "wait", "sync", "other"]
    ),
    st.sampled_from([7, 8]),
    st.integers(0, 3),  # the stream
    st.lists(st.sampled_from(["0xa r", "0xb r", "0xb w"]), max_size=2),
    st.integers(0, 2),  # how long after its marker the call comes
    st.booleans(),  # whether its row is lost
)


def played(actions):
    """Return markers, calls and ops of a program, and of each call that is there what it does."""
    markers, calls, ops, truth, now = [PLAN], [], [], {}, 1
    for number, (what, thread, stream, uses, gap, is_lost) in enumerate(actions):
        said = {
            "graph_launch": [f"replay {number + 1:#x}"],
            "record": [f"record {number:#x} stream=0x5"],
            "wait": [f"wait {number:#x} stream=0x5"],
            "sync": [f"sync {number:#x}"],
            "other": [],
        }.get(what, [f"use {use} stream={stream:#x}" for use in uses])
        if what == "graph_launch":
            declared = "".join(f" {use[-1]}:{use[:3]}" for use in uses)
            markers.append(f"{thread} {now} - tk1 graph {number + 1:#x} declares{declared}")
        start, end = now + gap, now + gap + 2
        at = end if what in ("record", "sync") else now
        markers += [f"{thread} {at} - tk1 {text}" for text in said]
        kind = f"event_{what}" if what in ("record", "wait", "sync") else what
        known = "-" if is_lost else number
        if what in LAUNCHES:
            graph = known if what == "graph_launch" else "-"
            ops.append(f"{number} 0 {known} {number} {graph} {stream}")
        if not is_lost:
            calls.append(f"{number} {thread} {start} {end} {kind} - - {number}")
            uses = uses if what in LAUNCHES else []
            truth[number] = (kind, {(use[:3], use[-1]) for use in uses})
        now = end
    columns = "op_id process_id call_id correlation_id graph_launch_id stream_id\n"
    return "\n".join(markers), "\n".join(calls), columns + "\n".join(ops), truth


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(actions=st.lists(ACTIONS, max_size=12))
def test_lost_calls_take_what_was_said_of_them_with_them_and_move_it_nowhere(read, actions):
    markers, calls, ops, truth = played(actions)
    trace = read(markers, calls, ops=ops)
    buffers = {"plan": "0xa", "0xb": "0xb"}
    found = {call: set() for call in truth}
    for call, buffer, _, _, mode in trace.table("accesses").rows():
        found[call].add((buffers[buffer], mode[0]))
    for call, accesses in found.items():
        assert accesses <= truth[call][1]
    for statement, event, _, call in marks(trace):
        assert call is None or (call, truth[call][0]) == (event, f"event_{statement}")
    if not any(is_lost for *_, is_lost in actions):
        assert found == {call: uses for call, (_, uses) in truth.items()}
        assert [call for *_, call in marks(trace)] == [event for _, event, *_ in marks(trace)]


def test_a_call_of_unknown_name_that_launched_something_may_have_been_meant(read):
    trace = read(
        f"{PLAN}\n7 10 - tk1 use 0xa r",
        "0 7 11 12 other\n1 7 20 30 launch",
        ops="op_id process_id call_id\n0 0 0\n1 0 1",
    )
    assert accesses(trace) == []


@pytest.mark.parametrize(
    "text",
    [
        "tk1 step 1 bs=8 bs=8",
        "tk1 sync 0x1 why=1 why=2",
        "tk1 stream 0x1 flags=null",
        "tk1 stream 0x1 device=0",
        "tk1 buffer 0x1 addr=0x1",
        "tk1 record 0x1",
        "tk1 sync 0x1 " + "k" * 181 + "=123456",
        "tk1 step 1 kind=" + "k" * 65,
        "tk1 sync 0x00",
        "tk1 sync 0x10000000000000000",
        "tk1 step 1000000000000000000",
        "tk1 use 0x1 rw",
        "tk1 use 0x1 r mode=w",
        "tk1 graph 0x1 declares x:0x2",
        "tk1 sync  0x1",
        "tk1 sync 0x1 ",
        "tk2 sync 0x1",
    ],
)
def test_what_is_not_of_the_grammar_is_not_read(text):
    if text.startswith("tk1"):
        with pytest.raises(ValueError, match="tk1"):
            parse(text)
    assert parsed_texts(pl.Series([text])).is_empty()
