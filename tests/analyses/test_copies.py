"""copies by hand: what is rated, and what belongs to a window."""

from tracekit.analyses.copies import ANALYSIS, COPIES

CALLS = """
call_id process_id name            kind start_ns end_ns
0       0          hipMemcpyAsync  copy 0        4
1       0          hipMemcpyAsync  copy 10       16
2       0          hipMemcpy       copy 20       40
"""
OPS = """
op_id kind process_id device_id start_ns end_ns
0     copy 0          0         5        15
1     copy 0          0         30       40
2     copy 0          0         90       95
"""
REQUESTS = """
call_id op_id process_id copied_bytes direction      is_blocking is_pinned
0       0     0          1000         host-to-device false       true
1       -     0          500          host-to-device false       true
2       1     0          400          device-to-host true        -
-       2     0          -            -              -           -
"""


def test_a_rate_is_over_the_requests_that_have_an_op_and_none_is_made_up(run, check):
    result = run(ANALYSIS.compute, calls=CALLS, ops=OPS, copies=REQUESTS)
    check(
        result,
        COPIES,
        """
        process_id direction      name           is_blocking is_pinned requests requests_with_op requests_without_op copied_bytes device_ns gigabytes_per_s call_total_ns call_median_ns
        0          host-to-device hipMemcpyAsync false       true      2        1                1                   1500         10        100.0           10            5.0
        0          device-to-host hipMemcpy      true        -         1        1                0                   400          10        40.0            20            20.0
        0          -              -              -           -         1        1                0                   -            5         -               -             -
        """,
    )


def test_a_request_belongs_to_the_window_of_its_call_or_else_of_its_op(run, check):
    # Call 0 ends as the host window begins; call 2 meets it; the op without a call ends too late.
    result = run(
        ANALYSIS.compute, window=(0, 90), host=(4, 30), calls=CALLS, ops=OPS, copies=REQUESTS
    )
    check(
        result,
        COPIES,
        """
        name           requests copied_bytes device_ns gigabytes_per_s call_total_ns
        hipMemcpyAsync 1        500          -         -               6
        hipMemcpy      1        400          10        40.0            20
        """,
    )


def test_copies_without_an_op_are_counted_in_a_note(table):
    copies = table("copies", REQUESTS)
    assert [note.count for note in ANALYSIS.caveats(copies)] == [1]
    assert ANALYSIS.caveats(copies.clear()) == []
