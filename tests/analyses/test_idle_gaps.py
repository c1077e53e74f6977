"""The idle ledger, by hand: each cause once, and the cases that decide between two."""

import polars as pl
import pytest

from tracekit.analyses.idle_gaps import ANALYSIS
from tracekit.idle_time.pieces import idle_pieces
from tracekit.tables.catalog import TABLES
from tracekit.tables.identity import WINDOWS

OPS = "op_id kind name device_id process_id stream_id start_ns end_ns call_id correlation_id"


def windows(*rows):
    frame = pl.DataFrame(rows, schema=["device_id", "start_ns", "end_ns"], orient="row")
    return WINDOWS.conform(frame)


@pytest.fixture
def pieces(frame):
    """Pieces as tuples (start, end, cause, part, owner call, range) of the default window."""

    def cut(
        ops,
        calls="call_id",
        copies="call_id",
        waits="wait_id",
        ranges="range_id",
        marks="range_id",
        window=None,
    ):
        frames = [
            frame(name, text)
            for name, text in (
                ("ops", ops),
                ("calls", calls),
                ("copies", copies),
                ("waits", waits),
                ("marks", marks),
                ("ranges", ranges),
            )
        ]
        table = frames[0]
        span = window or (0, table["start_ns"].min(), table["end_ns"].max())
        rows = pl.concat(idle_pieces(*frames, windows(span))).sort("start_ns")
        return rows.select("start_ns", "end_ns", "cause", "part", "owner_call_id", "range").rows()

    return cut


def test_a_sync_that_ended_before_the_gap_owns_it_until_the_host_is_ahead_again(pieces):
    # The sync returns at 110 after the kernel's end at 100. The host prepares until 300, launches
    # at 300, and the kernel starts at 320: wake-up 10, exposed 190, launch 20.
    cut = pieces(
        f"""{OPS}
        0 kernel verify 0 0 1   0 100 0 0
        1 kernel draft  0 0 1 320 400 2 2
        """,
        """
        call_id process_id thread_id name                kind       start_ns end_ns correlation_id stream_id event_key
        0       0          7         hipLaunchKernel     launch          -20    -10              0         1         -
        1       0          7         hipStreamSynchronize stream_sync     -5    110              1         1         -
        2       0          7         hipLaunchKernel     launch          300    330              2         1         -
        """,
    )
    assert cut == [
        (100, 110, "host-blocked", "wake-up", 1, None),
        (110, 300, "host-blocked", "exposed", 1, None),
        (300, 320, "host-blocked", "launch", 1, None),
    ]


def test_a_sync_that_found_its_work_done_owns_nothing(pieces):
    cut = pieces(
        f"""{OPS}
        0 kernel verify 0 0 1   0 100 0 0
        1 kernel draft  0 0 1 320 400 2 2
        """,
        """
        call_id process_id thread_id name                 kind        start_ns end_ns correlation_id stream_id
        0       0          7         hipLaunchKernel      launch           -20    -10              0         1
        1       0          7         hipStreamSynchronize stream_sync      120    122              1         1
        2       0          7         hipLaunchKernel      launch           300    330              2         1
        """,
    )
    assert cut == [
        (100, 300, "host-late", "host", None, None),
        (300, 320, "host-late", "launch", None, None),
    ]


def test_a_host_that_was_ahead_since_the_sync_lost_its_lead_for_another_reason(pieces):
    # After the sync (ended at 110) the kernel of call 3 was queued behind the kernel of call 2.
    cut = pieces(
        f"""{OPS}
        0 kernel a 0 0 1   0 100 0 0
        1 kernel b 0 0 1 120 200 2 2
        2 kernel c 0 0 1 200 210 3 3
        3 kernel d 0 0 1 400 410 4 4
        """,
        """
        call_id process_id thread_id name                 kind        start_ns end_ns correlation_id stream_id
        0       0          7         hipLaunchKernel      launch           -20    -10              0         1
        1       0          7         hipStreamSynchronize stream_sync       -5    110              1         1
        2       0          7         hipLaunchKernel      launch           112    115              2         1
        3       0          7         hipLaunchKernel      launch           130    140              3         1
        4       0          7         hipLaunchKernel      launch           390    395              4         1
        """,
    )
    assert cut == [
        (100, 110, "host-blocked", "wake-up", 1, None),
        (110, 112, "host-blocked", "exposed", 1, None),
        (112, 115, "host-blocked", "launch", 1, None),
        (115, 120, "launch-latency", None, None, None),
        (210, 390, "host-late", "host", None, None),
        (390, 395, "host-late", "launch", None, None),
        (395, 400, "launch-latency", None, None, None),
    ]


def test_a_launch_that_returned_after_the_device_went_idle_was_not_ahead(pieces):
    # Kernel c's launch began while b still ran (until 140) but returned at 150: no lead regained.
    cut = pieces(
        f"""{OPS}
        0 kernel a 0 0 1   0 100 0 0
        1 kernel b 0 0 1 120 140 2 2
        2 kernel c 0 0 1 160 170 3 3
        3 kernel d 0 0 1 400 410 4 4
        """,
        """
        call_id process_id thread_id name                 kind        start_ns end_ns correlation_id stream_id
        0       0          7         hipLaunchKernel      launch           -20    -10              0         1
        1       0          7         hipStreamSynchronize stream_sync       -5    110              1         1
        2       0          7         hipLaunchKernel      launch           112    125              2         1
        3       0          7         hipLaunchKernel      launch           130    150              3         1
        4       0          7         hipLaunchKernel      launch           390    395              4         1
        """,
    )
    assert cut[-5:] == [
        (140, 150, "host-blocked", "launch", 1, None),
        (150, 160, "launch-latency", None, None, None),
        (170, 390, "host-blocked", "exposed", 1, None),
        (390, 395, "host-blocked", "launch", 1, None),
        (395, 400, "launch-latency", None, None, None),
    ]


def test_a_sync_on_another_thread_does_not_own_the_gap(pieces):
    cut = pieces(
        f"""{OPS}
        0 kernel a 0 0 1   0 100 0 0
        1 kernel b 0 0 1 320 400 2 2
        """,
        """
        call_id process_id thread_id name                 kind        start_ns end_ns correlation_id stream_id
        0       0          7         hipLaunchKernel      launch           -20    -10              0         1
        1       0          8         hipStreamSynchronize stream_sync       -5    110              1         1
        2       0          7         hipLaunchKernel      launch           300    330              2         1
        """,
    )
    assert [row[2] for row in cut] == ["host-late", "host-late"]


def test_an_event_sync_waits_for_what_its_stream_had_when_the_event_was_recorded(pieces):
    # The event was recorded behind kernel a on stream 1; kernel b on stream 2 ends in the call too,
    # but the call returned for a (ended 100), long before b (ended 500).
    cut = pieces(
        f"""{OPS}
        0 kernel a 0 0 1   0 100 0 0
        1 kernel b 0 0 2   0 500 1 1
        2 kernel c 0 0 1 620 700 4 4
        """,
        """
        call_id process_id thread_id name                kind         start_ns end_ns correlation_id stream_id event_key
        0       0          7         hipLaunchKernel     launch            -40    -30              0         1         -
        1       0          7         hipLaunchKernel     launch            -30    -20              1         2         -
        2       0          7         hipEventRecord      event_record      -20    -18              2         1        99
        3       0          7         hipEventSynchronize event_sync        -15    108              3         -        99
        4       0          7         hipLaunchKernel     launch            600    630              4         1         -
        """,
    )
    assert cut == [
        (500, 600, "host-blocked", "exposed", 3, None),
        (600, 620, "host-blocked", "launch", 3, None),
    ]


def test_an_asynchronous_copy_that_finished_on_an_idle_device_did_not_hold_the_host(pieces):
    # The copy's op ends inside its call only because the device had nothing else to do.
    cut = pieces(
        f"""{OPS}
        0 kernel a 0 0 1   0 100 0 0
        1 copy   h 0 0 1 210 212 1 1
        2 kernel b 0 0 1 300 400 2 2
        """,
        """
        call_id process_id thread_id name           kind   start_ns end_ns correlation_id stream_id
        0       0          7         hipLaunchKernel launch     -20    -10              0         1
        1       0          7         hipMemcpyAsync copy        200    230              1         1
        2       0          7         hipLaunchKernel launch     290    295              2         1
        """,
        """
        call_id op_id process_id is_blocking is_pinned
        1       1     0          -           -
        """,
    )
    assert {row[2] for row in cut} == {"host-late", "launch-latency"}


def test_a_copy_that_began_after_its_call_had_returned_did_not_hold_the_host(pieces):
    # As between NCCL's kernels on an A100: the copy runs beside a and ends 4 µs after its call, less
    # than the clocks may differ by. It waited for nothing.
    cut = pieces(
        f"""{OPS}
        0 kernel a 0 0 2     0 300000 0 0
        1 copy   d 0 0 1 22000  24000 1 1
        2 kernel b 0 0 1 690000 700000 2 2
        """,
        """
        call_id process_id thread_id name            kind   start_ns end_ns correlation_id stream_id
        0       0          7         cudaLaunchKernel launch    -20    -10              0         2
        1       0          7         cudaMemcpyAsync  copy    10000  20000              1         1
        2       0          7         cudaLaunchKernel launch 670000 680000              2         1
        """,
        """
        call_id op_id process_id is_blocking is_pinned
        1       1     0          -           -
        """,
    )
    assert [row[2] for row in cut] == ["host-late", "host-late", "launch-latency"]


def test_a_copy_that_waited_for_earlier_work_and_returned_with_its_own_end_held_the_host(pieces):
    cut = pieces(
        f"""{OPS}
        0 kernel a 0 0 1   0 100 0 0
        1 copy   h 0 0 1 100 105 1 1
        2 kernel b 0 0 1 300 400 2 2
        """,
        """
        call_id process_id thread_id name           kind   start_ns end_ns correlation_id stream_id
        0       0          7         hipLaunchKernel launch     -20    -10              0         1
        1       0          7         hipMemcpyAsync copy         10    111              1         1
        2       0          7         hipLaunchKernel launch     290    295              2         1
        """,
        """
        call_id op_id process_id is_blocking is_pinned
        1       1     0          -           -
        """,
    )
    assert cut == [
        (105, 111, "host-blocked", "wake-up", 1, None),
        (111, 290, "host-blocked", "exposed", 1, None),
        (290, 295, "host-blocked", "launch", 1, None),
        (295, 300, "launch-latency", None, None, None),
    ]


def test_a_gap_before_work_that_was_already_submitted_is_launch_latency(pieces):
    cut = pieces(
        f"""{OPS}
        0 kernel a 0 0 1   0 100 0 0
        1 kernel b 0 0 1 130 200 1 1
        """,
        """
        call_id process_id thread_id name            kind   start_ns end_ns correlation_id stream_id
        0       0          7         hipLaunchKernel launch      -20    -10              0         1
        1       0          7         hipLaunchKernel launch       10     20              1         1
        """,
    )
    assert cut == [(100, 130, "launch-latency", None, None, None)]


def test_a_gap_behind_a_wait_for_another_stream_is_a_queue_wait(pieces):
    # Stream 2 waits for stream 1's kernel a; b starts 30 after a's end, though submitted long ago.
    cut = pieces(
        f"""{OPS}
        0 kernel a 0 0 1   0 100 0 0
        1 kernel b 0 0 2 130 200 3 3
        """,
        """
        call_id process_id thread_id name               kind         start_ns end_ns correlation_id stream_id
        0       0          7         hipLaunchKernel    launch            -20    -10              0         1
        1       0          7         hipEventRecord     event_record       -9     -8              1         1
        2       0          7         hipStreamWaitEvent event_wait          5      6              2         2
        3       0          7         hipLaunchKernel    launch             10     20              3         2
        """,
        waits="""
        wait_id process_id waiting_stream_id recording_stream_id wait_call_id record_call_id pending_start_ns pending_end_ns evidence
        0       0          2                 1                   2            1              6                100            inferred
        """,
    )
    assert cut == [(100, 130, "queue-wait", "hand-over", None, None)]


WAIT_CALLS = """
    call_id process_id thread_id name               kind         start_ns end_ns correlation_id stream_id
    0       0          7         hipLaunchKernel    launch            -20    -10              0         1
    1       0          7         hipEventRecord     event_record       -9     -8              1         1
    2       0          7         hipStreamWaitEvent event_wait          5      6              2         2
    3       0          7         hipLaunchKernel    launch             10     20              3         2
    """
WAITS = "wait_id process_id waiting_stream_id recording_stream_id wait_call_id record_call_id pending_start_ns pending_end_ns evidence"


@pytest.mark.parametrize(
    ("recording", "op_stream"),
    [
        # The profiler recorded the wait without the stream that recorded the event.
        ("-", 2),
        # The launch goes to the waiting stream; its op, a branch of a graph, ran on another.
        (1, 5),
    ],
)
def test_a_wait_counts_with_what_is_known_of_it(pieces, recording, op_stream):
    cut = pieces(
        f"{OPS}\n 0 kernel a 0 0 1 0 100 0 0\n 1 kernel b 0 0 {op_stream} 130 200 3 3",
        WAIT_CALLS,
        waits=f"{WAITS}\n 0 0 2 {recording} 2 1 6 100 recorded",
    )
    assert cut == [(100, 130, "queue-wait", "hand-over", None, None)]


@pytest.mark.parametrize(
    ("calls", "waits"),
    [
        (WAIT_CALLS, "wait_id"),
        (WAIT_CALLS, f"{WAITS}\n 0 0 2 - 2 - 6 - inferred"),
        # Nor does the call say which stream it made wait.
        (WAIT_CALLS.replace("5      6              2         2", "5 6 2 -"), "wait_id"),
    ],
    ids=["no row", "no record", "no stream"],
)
@pytest.mark.parametrize("op_stream", [2, "-"])
def test_a_wait_of_which_evidence_is_missing_makes_its_time_unknown_and_nothing_else(
    pieces, calls, waits, op_stream
):
    ops = f"{OPS}\n 0 kernel a 0 0 1 0 100 0 0\n 1 kernel b 0 0 {op_stream} 130 200 3 3"
    calls = calls if op_stream == 2 else calls.replace("20              3         2", "20 3 -")
    assert pieces(ops, calls, waits=waits) == [(100, 130, "unknown", None, None, None)]


@pytest.mark.parametrize(
    "calls",
    [
        # Captured into a graph, the call made no stream wait; another stream was made to; and the
        # wait holds the op behind it, not the one after that.
        f"""{WAIT_CALLS}    8 0 7 hipStreamBeginCapture other 3 4 7 2
        9 0 7 hipStreamEndCapture other 7 8 8 2""",
        WAIT_CALLS.replace("5      6              2         2", "5 6 2 9"),
        WAIT_CALLS.replace("5      6              2         2", "-15 -14 2 1"),
    ],
    ids=["captured", "other stream", "before another op"],
)
def test_a_wait_that_held_no_op_behind_the_gap_leaves_it_late(pieces, calls):
    ops = f"{OPS}\n 0 kernel a 0 0 1 0 100 0 0\n 1 kernel b 0 0 2 130 200 3 3"
    called = calls.replace("hip", "cuda")
    assert pieces(ops, called) == [(100, 130, "launch-latency", None, None, None)]


def test_where_a_call_is_missing_it_may_have_made_the_stream_wait(pieces):
    ops = f"{OPS}\n 0 kernel a 0 0 1 0 100 0 0\n 1 kernel b 0 0 2 130 200 3 3"
    number = "10     20              3         2"
    assert number in WAIT_CALLS
    # Without the wait's own row, and the launch behind it has the number after next.
    calls = "\n".join(
        line
        for line in WAIT_CALLS.replace(number, number.replace("3 ", "4 ", 1)).splitlines()
        if "hipStreamWaitEvent" not in line
    )
    assert pieces(ops, calls) == [(100, 130, "unknown", None, None, None)]


def test_what_comes_long_after_the_wait_was_over_is_not_the_waits(pieces):
    cut = pieces(
        f"{OPS}\n 0 kernel a 0 0 1 0 100 0 0\n 1 kernel b 0 0 2 900000 900200 3 3",
        WAIT_CALLS,
        waits=f"{WAITS}\n 0 0 2 1 2 1 6 100 inferred",
    )
    assert cut == [
        (100, 100_100, "queue-wait", "hand-over", None, None),
        (100_100, 900_000, "launch-latency", None, None, None),
    ]


def test_a_wait_that_was_over_before_the_gap_does_not_explain_it(pieces):
    cut = pieces(
        f"""{OPS}
        0 kernel a 0 0 1   0  40 0 0
        1 kernel b 0 0 3   0 100 1 1
        2 kernel c 0 0 2 130 200 4 4
        """,
        """
        call_id process_id thread_id name               kind         start_ns end_ns correlation_id stream_id
        0       0          7         hipLaunchKernel    launch            -20    -10              0         1
        1       0          7         hipLaunchKernel    launch            -10     -8              1         3
        2       0          7         hipEventRecord     event_record       -7     -6              2         1
        3       0          7         hipStreamWaitEvent event_wait          5      6              3         2
        4       0          7         hipLaunchKernel    launch             10     20              4         2
        """,
        waits="""
        wait_id process_id waiting_stream_id recording_stream_id wait_call_id record_call_id pending_start_ns pending_end_ns evidence
        0       0          2                 1                   3            2              6                40             inferred
        """,
    )
    assert cut == [(100, 130, "launch-latency", None, None, None)]


def test_gaps_inside_one_graph_launch_are_dispatch_even_while_the_launch_call_still_runs(pieces):
    cut = pieces(
        """
        op_id kind   name device_id process_id stream_id start_ns end_ns call_id correlation_id graph_launch_id
        0     kernel a    0         0          1           0        10      0       0              0
        1     kernel b    0         0          1          14        20      0       0              0
        2     kernel c    0         0          1          25        30      0       0              0
        """,
        """
        call_id process_id thread_id name           kind         start_ns end_ns correlation_id stream_id
        0       0          7         hipGraphLaunch graph_launch      -20     22              0         1
        """,
    )
    assert cut == [
        (10, 14, "dispatch", None, None, None),
        (20, 25, "dispatch", None, None, None),
    ]


def test_exposed_time_goes_to_the_innermost_marker_with_counting_numbers_starred(pieces):
    cut = pieces(
        f"""{OPS}
        0 kernel a 0 0 1   0 100 0 0
        1 kernel b 0 0 1 320 400 2 2
        """,
        """
        call_id process_id thread_id name                 kind        start_ns end_ns correlation_id stream_id
        0       0          7         hipLaunchKernel      launch           -20    -10              0         1
        1       0          7         hipStreamSynchronize stream_sync       -5    110              1         1
        2       0          7         hipLaunchKernel      launch           300    330              2         1
        """,
        ranges="""
        range_id kind     process_id thread_id text       start_ns end_ns
        0        marker   0          7         step#12         105    400
        1        marker   0          7         prepare_v2      150    250
        2        operator 0          7         aten::copy_     160    170
        """,
    )
    assert cut == [
        (100, 110, "host-blocked", "wake-up", 1, None),
        (110, 150, "host-blocked", "exposed", 1, "step#*"),
        (150, 250, "host-blocked", "exposed", 1, "prepare_v2"),
        (250, 300, "host-blocked", "exposed", 1, "step#*"),
        (300, 320, "host-blocked", "launch", 1, "step#*"),
    ]


QUIET_OPS = f"""{OPS}
    0 kernel a 0 0 1        0   100000 0 0
    1 kernel b 0 0 1 10000000 10001000 2 2
    """
QUIET_CALLS = """
    call_id process_id thread_id name                 kind        start_ns  end_ns  correlation_id stream_id
    0       0          7         hipLaunchKernel      launch           -20      -10              0         1
    1       0          7         hipStreamSynchronize stream_sync       -5   {end:>7}              1         1
    2       0          7         hipLaunchKernel      launch       9990000 10000500              2         1
    """
RANGES = "range_id kind process_id thread_id text start_ns end_ns"


@pytest.mark.parametrize(
    ("ranges", "host"),
    [
        # Nothing is open or called from the last range's end to the launch.
        (f"{RANGES}\n 0 marker 0 7 step -30 100000", [("starved", 100_000, 9_990_000)]),
        # A range in between: silence before and after it, and work inside it.
        (
            f"{RANGES}\n 0 marker 0 7 plan 3000000 4000000",
            [
                ("starved", 100_000, 3_000_000),
                ("host-late", 3_000_000, 4_000_000),
                ("starved", 4_000_000, 9_990_000),
            ],
        ),
        # Silences of less than a millisecond are Python between two ranges.
        (
            f"{RANGES}\n 0 marker 0 7 a 0 900000\n 1 marker 0 7 b 1899999 9990000",
            [
                ("host-late", 100_000, 900_000),
                ("host-late", 900_000, 1_899_999),
                ("host-late", 1_899_999, 9_990_000),
            ],
        ),
        # Without any range on the thread, silence is no evidence of having nothing to do.
        (RANGES, [("host-late", 100_000, 9_990_000)]),
        (f"{RANGES}\n 0 marker 0 8 step -30 50", [("host-late", 100_000, 9_990_000)]),
    ],
)
def test_a_thread_that_shows_nothing_for_long_is_starved_if_it_could_have_shown_something(
    pieces, ranges, host
):
    cut = pieces(QUIET_OPS, QUIET_CALLS.format(end=3), ranges=ranges)
    assert [(row[2], *row[:2]) for row in cut if row[1] <= 9_990_000] == host


def test_an_idle_server_is_not_the_price_of_its_last_sync(pieces):
    cut = pieces(
        QUIET_OPS,
        QUIET_CALLS.format(end=110_000),
        ranges=f"{RANGES}\n 0 marker 0 7 step -30 150000\n 1 marker 0 7 step 9500000 10001000",
    )
    assert cut == [
        (100_000, 110_000, "host-blocked", "wake-up", 1, None),
        (110_000, 150_000, "host-blocked", "exposed", 1, "step"),
        (150_000, 9_500_000, "starved", None, None, None),
        (9_500_000, 9_990_000, "host-blocked", "exposed", 1, "step"),
        (9_990_000, 10_000_000, "host-blocked", "launch", 1, "step"),
    ]


def test_from_the_return_of_its_call_on_the_next_op_is_late_and_not_the_host(pieces):
    # The call returned 463 µs before its kernel started; only 5 µs of the gap are the host's.
    cut = pieces(
        f"""{OPS}
        0 kernel a 0 0 1      0    100 0 0
        1 kernel b 0 0 1 463105 463200 1 1
        """,
        """
        call_id process_id thread_id name            kind   start_ns end_ns correlation_id stream_id
        0       0          7         hipLaunchKernel launch      -20    -10              0         1
        1       0          7         hipLaunchKernel launch      100    105              1         1
        """,
    )
    assert cut == [
        (100, 105, "host-late", "launch", None, None),
        (105, 463_105, "launch-latency", None, None, None),
    ]


@pytest.mark.parametrize("is_graph", [False, True])
def test_a_graph_launched_on_an_idle_device_is_no_more_of_a_lead_than_a_kernel(pieces, is_graph):
    # Work from 120 to 220 as one kernel, or as two nodes of one graph: the next gap has one cause.
    work = (
        "1 kernel b 0 0 1 120 150 2 2 2\n 3 kernel c 0 0 1 150 220 2 2 2"
        if is_graph
        else "1 kernel b 0 0 1 120 220 2 2 -"
    )
    cut = pieces(
        f"""{OPS} graph_launch_id
        0 kernel a 0 0 1   0 100 0 0 -
        {work}
        4 kernel d 0 0 1 400 410 4 3 -
        """,
        f"""
        call_id process_id thread_id name                 kind        start_ns end_ns correlation_id stream_id
        0       0          7         hipLaunchKernel      launch           -20    -10              0         1
        1       0          7         hipStreamSynchronize stream_sync       -5    110              1         1
        2       0          7         launch               {"graph_launch" if is_graph else "launch"} 112 125 2 1
        4       0          7         hipLaunchKernel      launch           390    400              3         1
        """,
    )
    assert cut[-2:] == [
        (220, 390, "host-blocked", "exposed", 1, None),
        (390, 400, "host-blocked", "launch", 1, None),
    ]


# The host blocks on an event between kernel a and the tail b, so b still runs when the call returns.
# What it launches then has call 4 and higher; from call 9 on it is late.
TAIL_OPS = f"""{OPS} graph_launch_id
    0 kernel a 0 0 1   0 100 0 0 -
    1 kernel b 0 0 1 100 160 2 2 -
    """
TAIL_CALLS = """
    call_id process_id thread_id name                kind         start_ns end_ns correlation_id stream_id event_key
    0       0          7         hipLaunchKernel     launch            -40    -30              0         1         -
    1       0          7         hipEventRecord      event_record      -30    -28              1         1        99
    2       0          7         hipLaunchKernel     launch            -25    -20              2         1         -
    3       0          7         hipEventSynchronize event_sync        -15    110              3         -        99
    """
LATE_OP = "9 kernel z 0 0 1 708 800 9 9 -"
LATE_CALL = "9 0 7 hipLaunchKernel launch 700 703 9 1 -"


def after_the_tail(pieces, ops, calls):
    """The pieces of the gap before the late op, as (start, end, cause, part, owner)."""
    # Numbers of CUDA calls leave some out; on HIP a call would be missing.
    called = f"{TAIL_CALLS}{calls}\n{LATE_CALL}".replace("hip", "cuda")
    cut = pieces(f"{TAIL_OPS}{ops}\n{LATE_OP}", called)
    assert cut[-1] == (703, 708, "launch-latency", None, None, None)
    return [row[:5] for row in cut[:-1]]


def test_a_tail_from_before_the_block_is_no_lead_for_what_is_launched_within_it(pieces):
    # The gather's call returns at 115, while b runs until 160: b was submitted before the block.
    assert after_the_tail(
        pieces,
        "4 kernel gather 0 0 2 118 121 4 4 -",
        "4 0 7 hipLaunchKernel launch 112 115 4 2 -",
    ) == [
        (160, 700, "host-blocked", "exposed", 3),
        (700, 703, "host-blocked", "launch", 3),
    ]


def test_a_graph_and_an_op_behind_it_are_a_lead_that_the_host_lost_by_itself(pieces):
    # Launched within the tail; the graph keeps the device busy from 160 to 400, so that at 124 the
    # op of call 5 has 276 ns to wait. By 410 the host could have launched what it launches at 700.
    graph = "4 kernel c 0 0 1 160 300 4 4 4\n 5 kernel d 0 0 1 300 400 4 4 4"
    launch = "4 0 7 hipGraphLaunch graph_launch 112 120 4 1 -"
    assert after_the_tail(
        pieces,
        f"{graph}\n 6 kernel e 0 0 1 400 410 5 5 -",
        f"{launch}\n 5 0 7 hipLaunchKernel launch 121 124 5 1 -",
    ) == [
        (410, 700, "host-late", "host", None),
        (700, 703, "host-late", "launch", None),
    ]
    # The graph alone is one op; its second node is no lead over its first.
    assert after_the_tail(pieces, graph, launch) == [
        (400, 700, "host-blocked", "exposed", 3),
        (700, 703, "host-blocked", "launch", 3),
    ]


@pytest.mark.parametrize(
    ("start", "end", "stream", "device", "owner"),
    [
        # Submitted after the return, to another stream, where it runs until 400.
        (112, 115, 2, 0, None),
        # The same, submitted before the block.
        (-20, -17, 2, 0, 3),
        # After the return, to another device.
        (112, 115, 2, 1, 3),
    ],
)
def test_work_on_another_stream_is_a_lead_if_it_came_after_the_block(
    pieces, start, end, stream, device, owner
):
    # At 119, when call 5 returns, device 0 has the tail and, it may be, that work to run.
    cut = after_the_tail(
        pieces,
        f"4 kernel c {device} 0 {stream} 117 400 4 4 -\n 5 kernel d 0 0 1 160 170 5 5 -",
        f"""4 0 7 hipLaunchKernel launch {start} {end} 4 {stream} -
        5 0 7 hipLaunchKernel launch 116 119 5 1 -""",
    )
    cause, part = ("host-blocked", "exposed") if owner else ("host-late", "host")
    idle_from = 170 if device else 400
    assert cut == [(idle_from, 700, cause, part, owner), (700, 703, cause, "launch", owner)]


def test_small_ops_behind_each_other_are_no_lead_beside_what_the_block_took(pieces):
    # As servers gather before they prepare: each call returns 1 to 3 ns before the op of the one
    # before it is done. The block took the lead of the whole forward, 115 ns.
    cut = after_the_tail(
        pieces,
        """4 kernel c 0 0 2 118 121 4 4 -
        5 kernel d 0 0 2 122 125 5 5 -
        6 kernel e 0 0 2 126 129 6 6 -""",
        """4 0 7 hipLaunchKernel launch 112 115 4 2 -
        5 0 7 hipLaunchKernel launch 116 118 5 2 -
        6 0 7 hipLaunchKernel launch 119 124 6 2 -""",
    )
    assert [row[2:] for row in cut] == [
        ("host-blocked", "exposed", 3),
        ("host-blocked", "launch", 3),
    ]


@pytest.mark.parametrize(
    ("until_ns", "expected"), [(176, "host-blocked"), (177, "host-late"), (300, "host-late")]
)
def test_half_the_lead_that_a_block_took_is_a_lead_again(pieces, until_ns, expected):
    # It took 115 ns, from its start at −15 until a was done at 100: 57.5 are half. When call 5
    # returns at 119, the device has until 176, 177 or 300 to run kernel c of call 4.
    cut = after_the_tail(
        pieces,
        f"4 kernel c 0 0 2 118 {until_ns} 4 4 -\n 5 kernel d 0 0 2 301 310 5 5 -",
        """4 0 7 hipLaunchKernel launch 112 115 4 2 -
        5 0 7 hipLaunchKernel launch 116 119 5 2 -""",
    )
    assert cut[-1] == (700, 703, expected, "launch", 3 if expected == "host-blocked" else None)


@pytest.mark.parametrize(
    ("lead_ns", "expected"), [(999_999, "host-blocked"), (1_000_000, "host-late")]
)
def test_a_millisecond_is_a_lead_however_long_the_block_was(pieces, lead_ns, expected):
    # Blocked for a second, as after a warm-up; then two ops behind each other, and a late one.
    at = 1_000_000_000
    until = at + 30 + lead_ns
    cut = pieces(
        f"""{OPS}
        0 kernel a 0 0 1        0            {at}               0 0
        1 kernel b 0 0 1 {at + 20}           {until}            2 2
        2 kernel c 0 0 1 {until}             {until + 10}       3 3
        3 kernel d 0 0 1 {until + 5_000_020} {until + 5_000_030} 4 4
        """,
        f"""
        call_id process_id thread_id name                 kind        start_ns            end_ns              stream_id
        0       0          7         hipLaunchKernel      launch      -20                 -10                 1
        1       0          7         hipStreamSynchronize stream_sync -5                  {at + 5}            1
        2       0          7         hipLaunchKernel      launch      {at + 10}           {at + 15}           1
        3       0          7         hipLaunchKernel      launch      {at + 20}           {at + 30}           1
        4       0          7         hipLaunchKernel      launch      {until + 5_000_000} {until + 5_000_010} 1
        """,
    )
    assert [row[2] for row in cut if row[0] > until] == [expected, expected, "launch-latency"]


def test_a_block_owns_no_more_gaps_once_the_device_has_idled_for_what_it_took(pieces):
    # It took 20 ns, from 80 to 100, of a host that then launches every 50 ns what runs for 10: of
    # the gap to 145 it owns 42, more than it took, and so nothing of those to 195 and 245.
    cut = pieces(
        f"""{OPS}
        0 kernel a 0 0 1   0 100 0 0
        1 kernel b 0 0 1 145 155 2 2
        2 kernel c 0 0 1 195 205 3 3
        3 kernel d 0 0 1 245 255 4 4
        """,
        """
        call_id process_id thread_id name                 kind        start_ns end_ns stream_id
        0       0          7         hipLaunchKernel      launch           -20    -10         1
        1       0          7         hipStreamSynchronize stream_sync       80    103         1
        2       0          7         hipLaunchKernel      launch           140    142         1
        3       0          7         hipLaunchKernel      launch           190    192         1
        4       0          7         hipLaunchKernel      launch           240    242         1
        """,
    )
    assert [row[:5] for row in cut if row[2] != "launch-latency"] == [
        (100, 103, "host-blocked", "wake-up", 1),
        (103, 140, "host-blocked", "exposed", 1),
        (140, 142, "host-blocked", "launch", 1),
        (155, 190, "host-late", "host", None),
        (190, 192, "host-late", "launch", None),
        (205, 240, "host-late", "host", None),
        (240, 242, "host-late", "launch", None),
    ]


def test_a_block_that_took_more_than_the_device_has_idled_owns_the_next_gap_too(pieces):
    # As above, but it took 43 ns or 42: the first gap has 42, so that the second is its or is not.
    for start_ns, second in ((57, "host-blocked"), (58, "host-late")):
        cut = pieces(
            f"""{OPS}
            0 kernel a 0 0 1   0 100 0 0
            1 kernel b 0 0 1 145 155 2 2
            2 kernel c 0 0 1 195 205 3 3
            """,
            f"""
            call_id process_id thread_id name                 kind        start_ns    end_ns stream_id
            0       0          7         hipLaunchKernel      launch           -20       -10         1
            1       0          7         hipStreamSynchronize stream_sync {start_ns}     103         1
            2       0          7         hipLaunchKernel      launch           140       142         1
            3       0          7         hipLaunchKernel      launch           190       192         1
            """,
        )
        assert {row[2] for row in cut if 155 <= row[0] < 192} == {second}


def test_what_was_submitted_later_is_no_lead_for_what_was_submitted_before(pieces):
    # Kernel c, submitted at 115, starts at 720 behind the late op: at 115 nothing else was there.
    cut = after_the_tail(
        pieces,
        "4 kernel c 0 0 2 720 730 4 4 -",
        "4 0 7 hipLaunchKernel launch 112 115 4 2 -",
    )
    assert [row[2:] for row in cut] == [
        ("host-blocked", "exposed", 3),
        ("host-blocked", "launch", 3),
    ]


def test_the_ops_of_one_copy_are_no_lead_over_each_other(pieces):
    cut = after_the_tail(
        pieces,
        "4 copy c 0 0 2 118 150 4 4 -\n 5 copy c 0 0 2 150 155 4 4 -",
        "4 0 7 hipMemcpyAsync copy 112 115 4 2 -",
    )
    assert [row[2] for row in cut] == ["host-blocked", "host-blocked"]


@pytest.mark.parametrize(("thread", "expected"), [(8, "host-late"), (7, "host-blocked")])
def test_a_block_ends_the_lead_of_its_own_thread_only(pieces, thread, expected):
    # Call 4 gives the device work until 400. Call 5 returns at 161, released by b; if it holds
    # thread 7, call 6 begins anew and alone, and kernel c is only the tail of that block.
    cut = after_the_tail(
        pieces,
        "4 kernel c 0 0 2 118 400 4 4 -\n 6 kernel e 0 0 1 400 410 6 6 -",
        f"""4 0 7 hipLaunchKernel launch 112 115 4 2 -
        5 0 {thread} hipStreamSynchronize stream_sync 120 161 5 1 -
        6 0 7 hipLaunchKernel launch 170 173 6 1 -""",
    )
    assert [row[2] for row in cut] == [expected, expected]


LONG = 1_000_000  # a call that lasts this long waited


@pytest.mark.parametrize(
    ("kind", "stream", "copy"),
    [
        # The stream it names was done long before: the null stream's rules, or a graph's branch.
        ("stream_sync", 9, "call_id"),
        # Freeing memory waits for the device.
        ("free", "-", "call_id"),
        # A blocking copy whose op was not recorded.
        ("copy", 1, "call_id op_id process_id is_blocking\n 1 - 0 true"),
    ],
)
def test_a_long_call_is_explained_by_the_work_that_ended_in_it(pieces, kind, stream, copy):
    cut = pieces(
        f"""{OPS}
        0 kernel a 0 0 1        0 {LONG}     0 0
        1 kernel b 0 0 1 {LONG + 300} {LONG + 400} 2 2
        """,
        f"""
        call_id process_id thread_id name kind   start_ns     end_ns       correlation_id stream_id
        0       0          7         a    launch -20          -10          0              1
        1       0          7         b    {kind} 50           {LONG + 10}  1              {stream}
        2       0          7         c    launch {LONG + 290} {LONG + 300} 2              1
        """,
        copy,
    )
    assert [row[2:5] for row in cut] == [
        ("host-blocked", "wake-up", 1),
        ("host-blocked", "exposed", 1),
        ("host-blocked", "launch", 1),
    ]


def test_a_device_sync_waits_for_one_device_while_another_runs_on(pieces):
    cut = pieces(
        f"""{OPS}
        0 kernel a 0 0 1   0   100 0 0
        1 kernel b 1 0 2   0 90000 1 1
        2 kernel c 0 0 1 320   400 3 3
        """,
        """
        call_id process_id thread_id name                 kind        start_ns end_ns correlation_id stream_id
        0       0          7         hipLaunchKernel      launch           -40    -30              0         1
        1       0          7         hipLaunchKernel      launch           -20    -10              1         2
        2       0          7         hipDeviceSynchronize device_sync       -5    110              2         -
        3       0          7         hipLaunchKernel      launch           300    320              3         1
        """,
        window=(0, 0, 400),
    )
    assert [row[2:4] for row in cut] == [
        ("host-blocked", "wake-up"),
        ("host-blocked", "exposed"),
        ("host-blocked", "launch"),
    ]


def test_ops_queued_before_recording_began_end_edge_gaps_and_lost_calls_end_unknown_ones(pieces):
    cut = pieces(
        f"""{OPS}
        0 kernel a 0 0 1   0 100 - 3
        1 kernel b 0 0 1 110 200 - 4
        2 kernel c 0 0 1 210 300 - 12
        """,
        """
        call_id process_id thread_id name        kind  start_ns end_ns correlation_id
        0       0          7         hipGetDevice other     5      6             10
        """,
    )
    assert cut == [
        (100, 110, "edge", None, None, None),
        (200, 210, "unknown", None, None, None),
    ]


def test_without_host_calls_every_gap_is_unknown(pieces):
    cut = pieces(f"{OPS}\n 0 kernel a 0 0 1 0 100 - 3\n 1 kernel b 0 0 1 110 200 - 4")
    assert cut == [(100, 110, "unknown", None, None, None)]


def test_a_queue_is_not_a_serial_lane_so_a_long_op_hides_the_gaps_behind_it(pieces):
    cut = pieces(
        f"""{OPS}
        0 kernel long  0 0 1  0 100 - 1
        1 kernel short 0 0 1 10  20 - 2
        2 kernel next  0 0 1 90 120 - 3
        """
    )
    assert cut == []


def test_barriers_are_not_work(pieces):
    cut = pieces(
        f"{OPS}\n 0 kernel a 0 0 1 0 10 - 1\n 1 barrier b 0 0 1 10 90 - 2\n 2 kernel c 0 0 1 90 95 - 3"
    )
    assert cut == [(10, 90, "unknown", None, None, None)]


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ((0, -50, 20), [(-50, 0, "edge"), (10, 20, "unknown")]),
        ((0, 15, 18), [(15, 18, "unknown")]),
        ((0, 40, 90), [(40, 90, "edge")]),
        ((0, 35, 90), [(35, 90, "edge")]),
    ],
)
def test_a_given_window_cuts_gaps_and_what_lies_outside_the_ops_is_edge(pieces, window, expected):
    ops = f"{OPS}\n 0 kernel a 0 0 1 0 10 - 1\n 1 kernel b 0 0 1 30 35 - 2"
    assert [row[:3] for row in pieces(ops, window=window)] == expected


def test_a_device_whose_ops_have_no_length_is_idle_all_the_time(pieces):
    ops = f"{OPS}\n 0 kernel a 0 0 1 5 5 - 1\n 1 kernel b 0 0 1 105 105 - 2"
    assert [row[:3] for row in pieces(ops)] == [(5, 105, "edge")]


def test_a_trace_without_calls_says_so_and_one_with_early_ops_names_the_clock_skew(frame):
    ops = frame("ops", f"{OPS}\n 0 kernel a 0 0 1 0 10 0 1")
    none = {name: TABLES[name].empty() for name in ("calls", "waits", "marks", "ranges")}
    (note,) = ANALYSIS.caveats(ops, none["calls"], none["waits"], none["marks"], none["ranges"])
    assert note.code == "idle-gaps.no-calls"
    late_call = frame("calls", "call_id process_id thread_id start_ns end_ns\n 0 0 7 4 9")
    codes = {
        note.code: note.message
        for note in ANALYSIS.caveats(ops, late_call, none["waits"], none["marks"], none["ranges"])
    }
    assert "by up to 4 ns" in codes["idle-gaps.clock-skew"]


def test_stream_waits_of_which_the_trace_knows_only_the_call_limit_what_can_be_said(frame):
    ops = frame("ops", f"{OPS}\n 0 kernel a 0 0 1 0 10 0 1")
    none = {name: TABLES[name].empty() for name in ("waits", "marks", "ranges")}
    for kind, expected in (("event_wait", ["idle-gaps.waits-unknown"]), ("launch", [])):
        calls = frame("calls", f"call_id process_id kind start_ns end_ns\n 0 0 {kind} -4 -2")
        notes = ANALYSIS.caveats(ops, calls, none["waits"], none["marks"], none["ranges"])
        assert [n.code for n in notes if "waits" in n.code] == expected
