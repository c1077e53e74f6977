"""Processes and devices of Kineto files."""

from functools import partial

import polars as pl
import pytest
from kineto_events import CUDA, ROCM, call, codes, event, kernel, read_events, rows


@pytest.fixture
def read(tmp_path):
    return partial(read_events, tmp_path)


def test_what_was_collected_follows_from_what_is_there(read):
    trace = read(call("hipLaunchKernel", 1, 1, 1), kernel("k", 3, 1, 1), **ROCM)
    assert rows(trace, "processes", "pid", "rank", "collected") == [(100, None, ["ops", "calls"])]


def test_device_numbers_of_roctracer_do_not_index_the_properties(read):
    properties = [{"id": i, "name": f"AMD Instinct {i}"} for i in range(8)]
    trace = read(kernel("k", 1, 1, 1, device=2), **ROCM, deviceProperties=properties)
    assert rows(trace, "devices", "index", "name") == [(2, None)]
    same = [{"id": i, "name": "AMD Instinct MI300X"} for i in range(8)]
    trace = read(kernel("k", 1, 1, 1, device=9), **ROCM, deviceProperties=same)
    assert rows(trace, "devices", "index", "name") == [(9, "AMD Instinct MI300X")]
    assert rows(trace, "process_devices", "local_index") == [(None,)]


def test_device_numbers_of_cuda_do(read):
    properties = [
        {"id": 0, "name": "NVIDIA A100", "computeMajor": 8, "computeMinor": 0},
        {"id": 1, "name": "NVIDIA H100", "computeMajor": 9, "computeMinor": 0},
    ]
    trace = read(kernel("k", 1, 1, 1, device=1), **CUDA, deviceProperties=properties)
    assert rows(trace, "devices", "index", "name", "arch") == [(1, "NVIDIA H100", "sm_90")]
    assert rows(trace, "process_devices", "local_index") == [(1,)]


def test_ranks_fused_into_one_file_stay_apart(read):
    fused = [
        kernel("k", 1, 5, 7, stream=4, device=2, kind="Dispatch Kernel", rank=rank, pid_raw=2)
        for rank in (0, 1)
    ]
    trace = read(*fused)
    assert rows(trace, "processes", "process_id", "rank") == [(0, 0), (1, 1)]
    assert sorted(rows(trace, "ops", "process_id", "device_id", "queue_id")) == [
        (0, 0, 0),
        (1, 1, 1),
    ]
    assert "kineto.ops-overlap" not in codes(trace)


def test_equal_correlations_of_two_processes_are_not_mixed_up(read):
    trace = read(
        event("cuda_runtime", "cudaLaunchKernel", 1, 1, 100, 100, correlation=1),
        event("cuda_runtime", "cudaLaunchKernel", 1, 1, 200, 200, correlation=1),
        event("cuda_runtime", "cudaLaunchKernel", 2, 1, 200, 200, correlation=2),
        kernel("of either", 5, 1, 1, device=0),
        kernel("of the second", 6, 1, 2, device=1),
        kernel("on the second's device", 8, 1, 1, device=1),
        **CUDA,
    )
    columns = ("name", "process_id", "call_id")
    calls = trace.table("calls")
    second = calls.filter(pl.col("process_id") == 1)["call_id"].to_list()
    assert rows(trace, "ops", *columns) == [
        ("of either", None, None),
        ("of the second", 1, second[1]),
        ("on the second's device", 1, second[0]),
    ]
    assert codes(trace)["kineto.process-unknown"] == 1
