"""calls by hand: which calls block, and what the host window cuts."""

import pytest

from tracekit.analyses.calls import ANALYSIS, CALLS

ROWS = "call_id process_id thread_id name kind start_ns end_ns"


def test_synchronizes_and_blocking_copies_block_and_nothing_else_does(run, check):
    result = run(
        ANALYSIS.compute,
        calls=f"""{ROWS}
        0 0 7 hipLaunchKernel      launch      0   10
        1 0 7 hipLaunchKernel      launch      10  40
        2 0 8 hipEventSynchronize  event_sync  0   50
        3 0 7 hipMemcpy            copy        50  70
        4 0 7 hipMemcpy            copy        70  75
        5 1 7 hipStreamSynchronize stream_sync 0   5
        6 1 7 hipDeviceSynchronize device_sync 0   4
        """,
        copies="""
        call_id is_blocking
        3       true
        3       true
        4       -
        """,
    )
    check(
        result,
        CALLS,
        """
        process_id kind        name                 calls total_ns mean_ns median_ns max_ns blocking_calls blocked_ns
        0          event_sync  hipEventSynchronize  1     50       50.0    50.0      50     1              50
        0          launch      hipLaunchKernel      2     40       20.0    20.0      30     0              -
        0          copy        hipMemcpy            2     25       12.5    12.5      20     1              20
        1          stream_sync hipStreamSynchronize 1     5        5.0     5.0       5      1              5
        1          device_sync hipDeviceSynchronize 1     4        4.0     4.0       4      1              4
        """,
    )


def test_the_host_window_cuts_totals_and_not_the_lengths_of_calls(run, check):
    result = run(
        ANALYSIS.compute,
        host=(20, 100),
        calls=f"""{ROWS}
        0 0 7 hipEventSynchronize event_sync 0   30
        1 0 7 hipEventSynchronize event_sync 90  130
        2 0 7 hipEventSynchronize event_sync 100 110
        3 0 7 hipMalloc           malloc     20  20
        """,
    )
    check(
        result,
        CALLS,
        """
        kind       name                calls total_ns mean_ns median_ns max_ns blocking_calls blocked_ns
        event_sync hipEventSynchronize 2     20       35.0    35.0      40     2              20
        malloc     hipMalloc           1     0        0.0     0.0       0      0              -
        """,
    )


@pytest.mark.parametrize(("blocking", "count"), [("true", []), ("false", []), ("-", [1])])
def test_copies_that_may_block_unseen_are_counted_in_a_note(table, blocking, count):
    calls = table("calls", f"{ROWS}\n0 0 7 hipMemcpyAsync copy 0 1")
    copies = table("copies", f"call_id is_blocking\n0 {blocking}")
    assert [note.count for note in ANALYSIS.caveats(calls, copies)] == count
