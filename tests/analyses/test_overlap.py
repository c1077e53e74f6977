"""overlap by hand: which time is overlapped, and when a ratio may be given."""

import random

import pytest

from instrumented_runtime.devices import Kernel
from instrumented_runtime.devices.virtual import Config, VirtualDevice
from instrumented_runtime.recorder import Recorder
from tracekit.analyses.overlap import ANALYSIS, MIN_KERNELS, OVERLAP
from tracekit.formats import read_trace
from tracekit.pipeline import analyse

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


def half_overlapped(length_ns, further_ns=0):
    """Five gemms of 10 ns alone and five of a length beside a copy of 50, and one kernel more."""
    rows = [
        row
        for i in range(5)
        for row in (
            f"{i} kernel gemm   0 1 - {i * 100} {i * 100 + 10}",
            f"{i} kernel gemm   0 1 - {500 + i * 100} {500 + i * 100 + length_ns}",
            f"{i} copy   memcpy 0 2 - {500 + i * 100} {500 + i * 100 + 50}",
        )
    ]
    return "\n".join([OPS, *rows, f"9 kernel other 0 1 - 1000 {1000 + further_ns}"])


@pytest.mark.parametrize(
    # Hidden are five times a gemm beside the copy, added five times what it takes longer than 10.
    # Busy are 50 + 250 ns and the other kernel.
    ("length_ns", "further_ns", "is_found"),
    [(14, 0, False), (19, 0, False), (20, 0, True), (20, 4_700, True), (20, 4_701, False)],
)
def test_overlap_that_loses_half_of_what_it_hides_is_contention(
    run, length_ns, further_ns, is_found
):
    result = run(ANALYSIS.compute, ops=half_overlapped(length_ns, further_ns))
    found = ANALYSIS.findings(result)
    assert [finding.code for finding in found] == ["overlap.contention"] * is_found
    if is_found:
        assert found[0].evidence == {
            "device_id": 0,
            "hidden_ns": 100,
            "added_ns": 50,
            "gain_ns": 50,
            "busy_ns": 300 + further_ns,
            "kernel_1": "gemm took 2.000× as long (5 overlapped, 5 alone)",
        }
        assert "because" not in found[0].message


def test_names_with_too_few_kernels_on_a_side_add_nothing(run):
    ops = half_overlapped(20).replace("1 - 0 10\n", "1 - 0 0\n")
    result = run(ANALYSIS.compute, ops=ops.replace("0 kernel gemm   0 1 - 0 0\n", ""))
    assert result.filter(name="gemm")["kernels_alone"].to_list() == [4]
    assert ANALYSIS.findings(result) == []


def beside_and_alone(folder, sensitivity):
    """Ten rounds of two kernels of 1 ms one after the other, and ten of both at once."""
    config = Config(tensors=False)
    with Recorder(folder, environment=config.environment()) as recorder:
        device = VirtualDevice(config, recorder)
        main, side = device.stream(), device.stream()
        kernels = [Kernel(name, 1_000_000, sensitivity=sensitivity) for name in ("reduce", "gemm")]
        for is_beside in (False, True):
            for _ in range(10):
                for kernel, stream in zip(kernels, (main, side), strict=True):
                    device.launch(kernel, stream)
                    if not is_beside:
                        device.synchronize()
                device.synchronize()
    return folder / "virtual_1.db"


@pytest.mark.parametrize(("sensitivity", "is_found"), [(0.0, False), (0.3, False), (0.9, True)])
def test_kernels_that_contend_are_found_where_little_is_won_by_it(tmp_path, sensitivity, is_found):
    # At once, each takes 1 + sensitivity ms: ten rounds hide that ten times, and add
    # twice the rest. With 0.3 they hide 13 ms and add 6; with 0.9 they hide 19 and add 18.
    # The second begins a launch later, some microseconds in which the first is alone.
    path = beside_and_alone(tmp_path, sensitivity)
    report = analyse(read_trace([path]), only=["overlap"])
    device = report.sections[0].frame.row(0, named=True)
    assert device["hidden_ns"] == pytest.approx((1 + sensitivity) * 10_000_000, rel=0.01)
    assert [finding.code for finding in report.findings] == ["overlap.contention"] * is_found
    if is_found:
        evidence = report.findings[0].evidence
        assert evidence["added_ns"] == pytest.approx(18_000_000, rel=0.01)
        assert evidence["gain_ns"] == evidence["hidden_ns"] - evidence["added_ns"]
        assert {evidence["kernel_1"].split()[0], evidence["kernel_2"].split()[0]} == {
            "reduce",
            "gemm",
        }
