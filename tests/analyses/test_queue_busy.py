"""queue-busy by hand: unions, edges of the window, main and side streams."""

import polars as pl
import pytest

from tracekit.analyses.queue_busy import ANALYSIS, QUEUE_BUSY

OPS = "op_id kind name device_id stream_id queue_id start_ns end_ns"
STREAMS = """
stream_id process_id name
1         5          main
2         5          side
"""


def test_a_long_op_under_short_ones_keeps_the_lane_busy(run, check):
    # The op of 0–100 still runs when the one of 10–20 has ended: looking at the previous row only
    # would find 20 ns of idle time before the third.
    result = run(
        ANALYSIS.compute,
        ops=f"""{OPS}
        0 kernel a 0 1 - 0   100
        1 kernel a 0 1 - 10  20
        2 kernel a 0 1 - 40  50
        3 kernel a 0 1 - 130 145
        4 kernel a 0 1 - 146 150
        """,
        streams=STREAMS,
    )
    check(
        result,
        QUEUE_BUSY,
        """
        device_id lane_kind lane_id process_id name     is_main ops sum_ns busy_ns busy_share         longest_idle_ns window_ns main_busy_ns side_busy_ns concurrency
        0         device    -       -          device~0 -       5   139    119     0.7933333333333333 30              150       119          0            1.0
        0         stream    1       5          main     true    5   139    119     0.7933333333333333 30              150       -            -            -
        """,
    )


def test_concurrency_is_main_and_side_time_over_the_time_of_either(run, check):
    # Main 0–60 and side 50–80 are busy 90 ns together, of 80 ns in which either is.
    result = run(
        ANALYSIS.compute,
        ops=f"""{OPS}
        0 kernel  a 0 1 4 0  60
        1 kernel  b 0 2 4 50 80
        2 barrier - 0 2 4 80 95
        """,
        window=(0, 100),
        streams=STREAMS,
    )
    check(
        result,
        QUEUE_BUSY,
        """
        lane_kind lane_id name     is_main ops sum_ns busy_ns busy_share longest_idle_ns main_busy_ns side_busy_ns concurrency
        device    -       device~0 -       2   90     80      0.8        20              60           30           1.125
        stream    1       main     true    1   60     60      0.6        40              -            -            -
        stream    2       side     false   1   30     30      0.3        50              -            -            -
        queue     4       queue~4  true    2   90     80      0.8        20              -            -            -
        """,
    )


def test_queues_are_the_lanes_where_no_stream_is_known(run, check):
    result = run(
        ANALYSIS.compute,
        ops=f"""{OPS}
        0 kernel a 0 - 4 0  10
        1 kernel b 0 - 5 5  25
        2 kernel b 1 - - 90 95
        """,
        queues="""
        queue_id process_id name
        4        0          first
        5        0          second
        """,
    )
    check(
        result,
        QUEUE_BUSY,
        """
        device_id lane_kind lane_id name     is_main busy_ns main_busy_ns side_busy_ns concurrency
        0         device    -       device~0 -       25      20           10           1.2
        0         queue     5       second   true    20      -            -            -
        0         queue     4       first    false   10      -            -            -
        1         device    -       device~1 -       5       5            0            1.0
        """,
    )


def test_ops_without_a_stream_are_a_lane_of_their_own_beside_named_streams(run, check):
    result = run(
        ANALYSIS.compute,
        ops=f"""{OPS}
        0 kernel a 0 1 - 0 10
        1 copy   b 0 - - 5 15
        """,
    )
    check(
        result,
        QUEUE_BUSY,
        """
        lane_kind lane_id name      is_main busy_ns concurrency
        device    -       device~0  -       15      1.3333333333333333
        stream    1       stream~1  true    10      -
        stream    -       no~stream false   10      -
        """,
    )


def test_the_window_cuts_ops_and_its_edges_count_as_idle(run, check):
    result = run(
        ANALYSIS.compute,
        ops=f"""{OPS}
        0 kernel a 0 1 - 0  30
        1 kernel a 0 1 - 40 45
        2 kernel a 0 2 - 90 99
        """,
        window=(20, 70),
    )
    check(
        result,
        QUEUE_BUSY,
        """
        lane_kind lane_id ops sum_ns busy_ns busy_share longest_idle_ns window_ns
        device    -       2   15     15      0.3        25              50
        stream    1       2   15     15      0.3        25              50
        """,
    )


@pytest.mark.parametrize(
    ("stream", "queue", "codes"),
    [("1", "1", []), ("-", "1", ["queue-busy.no-streams"]), ("-", "-", ["queue-busy.no-streams"])],
)
def test_a_trace_without_streams_says_so(frame, stream, queue, codes):
    ops = frame("ops", f"{OPS}\n0 kernel a 0 {stream} {queue} 0 1")
    assert [note.code for note in ANALYSIS.caveats(ops)] == codes
    assert ANALYSIS.caveats(ops.clear()) == []


def test_concurrency_of_a_thousand_streams_is_the_ratio_of_the_sums(run):
    ops = "\n".join(f"{i} kernel a 0 {i} - {i} {i + 1000}" for i in range(1000))
    result = run(ANALYSIS.compute, ops=f"{OPS}\n{ops}")
    device = result.filter(pl.col("lane_kind") == "device")
    assert device["concurrency"].item() == 1000 * 1000 / 1999
