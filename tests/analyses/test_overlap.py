"""overlap by hand: which time is overlapped, and when a ratio may be given."""

import random

import pytest

from tracekit.analyses.overlap import ANALYSIS, MIN_KERNELS, OVERLAP

OPS = "op_id kind name device_id stream_id queue_id start_ns end_ns"


def test_time_hidden_counts_lanes_and_not_ops_of_one_lane(run, check):
    # Stream 1 runs 0–30 (two ops overlapping themselves), stream 2 20–50, stream 3 25–30.
    result = run(
        ANALYSIS.compute,
        ops=f"""{OPS}
        0 kernel  a 0 1 - 0  20
        1 kernel  b 0 1 - 10 30
        2 kernel  c 0 2 - 20 50
        3 copy    d 0 3 - 25 30
        4 barrier e 0 3 - 0  50
        """,
    )
    check(
        result,
        OVERLAP,
        """
        device_id scope  name ops busy_ns overlapped_ns overlapped_share   hidden_ns kernels_alone kernels_overlapped alone_median_ns overlapped_median_ns slowdown
        0         device -    4   50      10            0.2                15        -             -                  -               -                    -
        0         kernel b    1   20      10            0.5                -         0             1                  -               20.0                 -
        0         kernel c    1   30      10            0.3333333333333333 -         0             0                  -               -                    -
        """,
    )


@pytest.mark.parametrize("overlapped", [MIN_KERNELS - 1, MIN_KERNELS])
def test_a_ratio_needs_enough_kernels_on_both_sides(run, check, overlapped):
    alone = [f"{i} kernel gemm 0 1 - {i * 100} {i * 100 + 10}" for i in range(MIN_KERNELS)]
    together = [
        row
        for i in range(10, 10 + overlapped)
        for row in (
            f"{i} kernel gemm   0 1 - {i * 100} {i * 100 + 14}",
            f"{i} copy   memcpy 0 2 - {i * 100} {i * 100 + 50}",
        )
    ]
    result = run(ANALYSIS.compute, ops="\n".join([OPS, *alone, *together]))
    slowdown = "1.4" if overlapped == MIN_KERNELS else "-"
    check(
        result.filter(scope="kernel"),
        OVERLAP,
        f"""
        scope  name ops                        kernels_alone kernels_overlapped alone_median_ns overlapped_median_ns slowdown
        kernel gemm {MIN_KERNELS + overlapped} {MIN_KERNELS} {overlapped}       10.0            14.0                 {slowdown}
        """,
    )


def test_kernels_that_the_window_cuts_are_in_the_sums_and_in_no_median(run, check):
    # The window cuts a twice and b, which run beside each other in 50–60; whole are a's
    # 100–130 alone and its 200–240 beside the other copy.
    result = run(
        ANALYSIS.compute,
        window=(50, 500),
        ops=f"""{OPS}
        0 kernel a 0 1 - 0   60
        1 kernel a 0 1 - 100 130
        2 kernel a 0 1 - 200 240
        3 kernel a 0 1 - 450 560
        4 kernel b 0 3 - 20  60
        5 copy   c 0 2 - 200 240
        """,
    )
    check(
        result.filter(scope="kernel"),
        OVERLAP,
        """
        name ops busy_ns overlapped_ns kernels_alone kernels_overlapped alone_median_ns overlapped_median_ns
        a    4   130     50            1             1                  30.0            40.0
        b    1   10      10            0             0                  -               -
        """,
    )


def test_queues_are_lanes_without_streams_and_one_lane_hides_nothing(run, check):
    ops = f"""{OPS}
    0 kernel a 0 - 4 0 20
    1 kernel b 0 - 5 5 10
    2 kernel a 1 7 4 0 20
    3 kernel b 1 7 5 5 10
    """
    check(
        run(ANALYSIS.compute, ops=ops).filter(scope="device"),
        OVERLAP,
        """
        device_id scope  ops busy_ns overlapped_ns hidden_ns
        0         device 2   20      5             5
        1         device 2   20      0             0
        """,
    )


def test_overlap_agrees_with_counting_lanes_instant_by_instant(run):
    rng = random.Random(3)
    found = [(rng.randrange(3), start := rng.randrange(300), start + 9) for _ in range(60)]
    lines = [f"{i} kernel a 0 {s} - {start} {end}" for i, (s, start, end) in enumerate(found)]
    lanes = [{s for s, start, end in found if start <= t < end} for t in range(310)]
    device = run(ANALYSIS.compute, ops="\n".join([OPS, *lines])).row(0, named=True)
    assert device["busy_ns"] == sum(bool(lane) for lane in lanes)
    assert device["overlapped_ns"] == sum(len(lane) >= 2 for lane in lanes)
    assert device["hidden_ns"] == sum(len(lane) - 1 for lane in lanes if lane)


@pytest.mark.parametrize(
    ("streams", "codes"),
    [("12", ["overlap.descriptive"]), ("11", []), ("--", ["overlap.no-lanes"])],
)
def test_the_caveat_says_what_cannot_be_told(table, streams, codes):
    rows = [f"{i} kernel a 0 {stream} - 0 1" for i, stream in enumerate(streams)]
    ops = table("ops", "\n".join([OPS, *rows]))
    assert [note.code for note in ANALYSIS.caveats(ops)] == codes
