"""launches by hand: the wait to the first op, early starts, ops without a call."""

from tracekit.analyses.launches import ANALYSIS, LAUNCHES

OPS = "op_id kind process_id device_id start_ns end_ns call_id correlation_id"
CALLS = """
call_id process_id name            kind         start_ns end_ns correlation_id
0       0          hipLaunchKernel launch       0        10     100
1       0          hipLaunchKernel launch       12       20     101
2       0          hipLaunchKernel launch       70       76     102
3       0          hipGraphLaunch  graph_launch 30       40     103
4       0          hipGraphLaunch  graph_launch 80       81     104
5       0          hipMalloc       malloc       90       99     105
"""


def test_a_launch_waits_from_its_calls_end_to_its_first_op(run, check):
    # Kernel launches wait 10, −1 (the op starts before the call returns) and 24. The graph waits
    # 5 to its first op at 45, which is not the first row. At 12 and at 70 the device is idle, at
    # 0 too: op 1 runs 19–25, op 0 20–30, the graph 45–60.
    result = run(
        ANALYSIS.compute,
        ops=f"""{OPS}
        0 kernel  0 0 20  30  0 100
        1 kernel  0 0 19  25  1 101
        2 kernel  0 0 50  60  3 103
        3 kernel  0 0 45  52  3 103
        4 kernel  0 0 100 110 2 102
        5 barrier 0 0 41  42  3 103
        """,
        calls=CALLS,
    )
    check(
        result,
        LAUNCHES,
        """
        process_id name            reason launches launches_without_ops ops call_median_ns queued_median_ns queued_p90_ns queued_max_ns started_early device_idle_share
        0          hipLaunchKernel -      3        0                    3   8.0            10.0             21.2          24            1             1.0
        0          hipGraphLaunch  -      2        1                    2   5.5            5.0              5.0           5             0             1.0
        """,
    )


def test_a_busy_device_at_the_calls_start_is_told_from_an_idle_one(run, check):
    ops = f"""{OPS}
    0 kernel 0 0 1  12 0 100
    1 kernel 0 0 25 30 1 101
    2 kernel 0 1 75 80 2 102
    """
    check(
        run(ANALYSIS.compute, ops=ops, calls=CALLS).filter(name="hipLaunchKernel"),
        LAUNCHES,
        """
        launches ops device_idle_share
        3        3   1.0
        """,
    )
    busy = ops.replace("1  12", "1  13")
    check(
        run(ANALYSIS.compute, ops=busy, calls=CALLS).filter(name="hipLaunchKernel"),
        LAUNCHES,
        """
        launches ops device_idle_share
        3        3   0.6666666666666666
        """,
    )


def test_ops_without_a_call_are_told_apart_by_when_they_were_queued(run, check):
    result = run(
        ANALYSIS.compute,
        ops=f"""{OPS}
        0 kernel  0 0 1 2 - 99
        1 kernel  0 0 2 3 - 100
        2 kernel  0 0 3 4 - -
        3 kernel  1 0 4 5 - 1
        4 barrier 0 0 4 5 - 1
        """,
        calls="""
        call_id process_id name      kind   start_ns end_ns correlation_id
        0       0          hipMalloc malloc 0        10     100
        1       0          hipMalloc malloc 20       30     -
        """,
    )
    check(
        result,
        LAUNCHES,
        """
        process_id name reason        launches launches_without_ops ops call_median_ns queued_median_ns started_early device_idle_share
        0          -    before-window -        -                    1   -              -                -             -
        0          -    no-call       -        -                    2   -              -                -             -
        1          -    no-call       -        -                    1   -              -                -             -
        """,
    )


def test_a_launch_belongs_to_the_window_in_which_its_first_op_starts(run, check):
    result = run(
        ANALYSIS.compute,
        window=(20, 50),
        host=(0, 50),
        ops=f"""{OPS}
        0 kernel 0 0 19 30  0 100
        1 kernel 0 0 20 25  1 101
        2 kernel 0 0 49 60  3 103
        3 kernel 0 0 55 60  3 103
        4 kernel 0 0 50 110 2 102
        """,
        calls=CALLS,
    )
    check(
        result,
        LAUNCHES,
        """
        name            launches launches_without_ops ops queued_max_ns started_early
        hipGraphLaunch  1        0                    2   9             0
        hipLaunchKernel 1        0                    1   0             0
        """,
    )


def test_a_trace_without_calls_says_so(table):
    ops, calls = table("ops", f"{OPS}\n0 kernel 0 0 0 1 - -"), table("calls", CALLS)
    assert [note.code for note in ANALYSIS.caveats(ops, calls.clear())] == ["launches.no-calls"]
    assert ANALYSIS.caveats(ops, calls) == []
