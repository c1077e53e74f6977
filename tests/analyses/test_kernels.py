"""kernels by hand: totals inside the window, statistics of whole ops."""

from tracekit.analyses.kernels import ANALYSIS, KERNELS

OPS = "op_id kind name device_id start_ns end_ns"


def test_time_goes_to_names_by_device_and_kind_the_largest_first(run, check):
    result = run(
        ANALYSIS.compute,
        ops=f"""{OPS}
        0 kernel  gemm 0 0  10
        1 kernel  gemm 0 10 40
        2 kernel  norm 0 0  40
        3 copy    gemm 0 40 60
        4 barrier wait 0 0  90
        5 kernel  gemm 1 0  7
        """,
    )
    check(
        result,
        KERNELS,
        """
        device_id kind   name ops total_ns sum_share mean_ns median_ns p99_ns min_ns max_ns
        0         kernel gemm 2   40       0.4       20.0    20.0      29.8   10     30
        0         kernel norm 1   40       0.4       40.0    40.0      40.0   40     40
        0         copy   gemm 1   20       0.2       20.0    20.0      20.0   20     20
        1         kernel gemm 1   7        1.0       7.0     7.0       7.0    7      7
        """,
    )


def test_an_op_that_the_window_cuts_adds_its_part_and_keeps_its_length_in_statistics(run, check):
    result = run(
        ANALYSIS.compute,
        ops=f"""{OPS}
        0 kernel gemm 0 0   30
        1 kernel gemm 0 40  50
        2 kernel norm 0 95  105
        3 kernel gone 0 100 120
        4 kernel none 0 60  60
        """,
        window=(20, 100),
    )
    check(
        result,
        KERNELS,
        """
        kind   name ops total_ns sum_share mean_ns median_ns p99_ns min_ns max_ns
        kernel gemm 2   20       0.8       20.0    20.0      29.8   10     30
        kernel norm 1   5        0.2       10.0    10.0      10.0   10     10
        """,
    )
