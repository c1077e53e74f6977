"""Device work and host calls of Kineto files, joined by correlation, and what is noted."""

from functools import partial

import pytest
from kineto_events import CUDA, ROCM, call, codes, cuda_sync, event, kernel, read_events, rows


@pytest.fixture
def read(tmp_path):
    return partial(read_events, tmp_path)


def test_an_op_belongs_to_the_call_with_its_correlation_whatever_the_call_is_named(read):
    trace = read(
        call("hipBrandNewLaunchApi", 1, 2, 8),
        call("hipGetDevice", 4, 1, 9),
        kernel("k", 5, 10, 8),
        **ROCM,
    )
    assert rows(trace, "ops", "name", "call_id", "correlation_id") == [("k", 0, 8)]


def test_of_a_runtime_and_a_driver_call_with_one_correlation_the_op_joins_the_runtime_call(read):
    trace = read(
        call("cuLaunchKernel", 2, 1, 5, category="cuda_driver"),
        call("cudaLaunchKernel", 1, 3, 5),
        kernel("k", 6, 1, 5),
        **CUDA,
    )
    joined = trace.table("ops").join(trace.table("calls"), on="call_id")
    assert joined["name_right"].to_list() == ["cudaLaunchKernel"]
    assert trace.table("calls").height == 2


def test_of_two_nested_runtime_calls_with_one_correlation_the_op_joins_the_outer(read):
    trace = read(
        call("hipArray3DCreate", 1, 8, 5),
        call("hipMemsetAsync", 1, 9, 5),
        kernel("__amd_rocclr_fillBufferAligned.kd", 20, 1, 5),
        **ROCM,
    )
    joined = trace.table("ops").join(trace.table("calls"), on="call_id")
    assert joined.select("kind", "name_right").rows() == [("fill", "hipMemsetAsync")]


def test_all_kernels_of_a_graph_launch_share_its_call(read):
    trace = read(
        call("hipGraphLaunch", 1, 1, 3),
        call("hipLaunchKernel", 3, 1, 4),
        kernel("a", 5, 1, 3),
        kernel("b", 6, 1, 3, **{"graph id": 21, "graph node id": 77}),
        kernel("c", 7, 1, 4),
        **ROCM,
    )
    expected = [("a", 0, 0, None, None), ("b", 0, 0, 21, 77), ("c", 1, None, None, None)]
    columns = ("name", "call_id", "graph_launch_id", "graph_exec_id", "graph_node")
    assert rows(trace, "ops", *columns) == expected


def test_device_work_is_decided_by_category_not_by_a_stream_argument(read):
    trace = read(
        event("cpu_op", "triton_launch", 1, 5, stream=7, kernel_name="k"),
        cuda_sync("Context Sync", 1, 50, 4, -1),
        event("gpu_user_annotation", "step", 1, 50, 0, 7, stream=7),
        kernel("k", 3, 1, 1),
        kernel("Memcpy HtoD (Pinned -> Device)", 4, 1, 2, category="gpu_memcpy", bytes=8),
        kernel("Memset (Device)", 5, 1, 3, category="gpu_memset"),
        **CUDA,
    )
    assert rows(trace, "ops", "kind") == [("kernel",), ("copy",), ("fill",)]


def test_categories_of_2021_are_read_too(read):
    trace = read(
        event("Operator", "aten::add", 1, 5),
        call("cudaLaunchKernel", 2, 1, "7", category="Runtime"),
        kernel("k", 4, 1, "7", category="Kernel"),
        kernel("Memcpy DtoH (Device -> Pageable)", 5, 1, 0, category="Memcpy"),
    )
    assert rows(trace, "ops", "kind", "call_id") == [("kernel", 0), ("copy", None)]
    assert rows(trace, "ranges", "kind", "text") == [("operator", "aten::add")]


def test_ops_without_a_call_are_split_by_why(read):
    trace = read(
        call("hipLaunchKernel", 10, 1, 50),
        kernel("queued before", 1, 1, 40),
        kernel("queued before too", 2, 1, 41),
        kernel("rccl", 3, 1, 0),
        kernel("its row was dropped", 4, 1, 60),
        kernel("fine", 12, 1, 50),
        **ROCM,
    )
    noted = codes(trace)
    assert noted["kineto.op-queued-before-window"] == 2
    assert noted["kineto.op-without-correlation"] == 1
    assert noted["kineto.op-without-call"] == 1
    assert rows(trace, "ops", "correlation_id") == [(40,), (41,), (None,), (60,), (50,)]


def test_an_op_that_starts_before_its_call_is_kept_and_counted(read):
    trace = read(call("cudaLaunchKernel", 10, 5, 1), kernel("k", 9.75, 1, 1), **CUDA)
    (note,) = [note for note in trace.notes if note.code == "kineto.op-before-call"]
    assert note.count == 1
    assert "250 ns" in note.message


def test_overlaps_on_one_lane_are_tolerated_and_counted_with_the_largest(read):
    trace = read(
        kernel("a", 0, 10, 1),
        kernel("b", 8, 10, 2),
        kernel("c", 17.5, 10, 3),
        kernel("other stream", 1, 10, 4, stream=8),
        **CUDA,
    )
    (note,) = [note for note in trace.notes if note.code == "kineto.ops-overlap"]
    assert (note.count, "2000 ns" in note.message) == (2, True)
    assert trace.table("ops").height == 4


def test_negative_durations_are_clamped_and_counted(read):
    trace = read(kernel("k", 5, -3, 1), call("cudaFree", 6, -1, 2), **CUDA)
    assert rows(trace, "ops", "start_ns", "end_ns") == [(10**18 + 5000, 10**18 + 5000)]
    assert codes(trace)["kineto.negative-durations"] == 2


def test_a_clock_that_jumps_back_gives_notes_not_wrong_joins(read):
    trace = read(
        call("cudaLaunchKernel", 1000, 5, 1),
        call("cudaLaunchKernel", 10, 5, 2),
        kernel("a", 20, 1, 1),
        kernel("b", 22, 1, 2),
        **CUDA,
    )
    assert rows(trace, "ops", "name", "call_id") == [("a", 1), ("b", 0)]
    assert codes(trace)["kineto.op-before-call"] == 1


def test_without_device_work_the_tables_are_empty_and_it_is_said(read):
    trace = read(event("cpu_op", "aten::add", 1, 2), **CUDA)
    assert trace.table("ops").is_empty()
    assert codes(trace)["kineto.no-ops"] == 1


def test_the_order_of_ids_does_not_depend_on_hashing(read):
    trace = read(
        event("cpu_op", "first", 1, 5),
        event("user_annotation", "second", 1, 5),
        call("hipLaunchKernel", 1, 5, 1),
        event("cuda_driver", "hipModuleLaunchKernel", 1, 5, correlation=2),
        kernel("a", 9, 1, 1),
        kernel("Memset (Device)", 9, 1, 2, category="gpu_memset"),
        **ROCM,
    )
    assert rows(trace, "ranges", "text") == [("first",), ("second",)]
    assert rows(trace, "calls", "name") == [("hipModuleLaunchKernel",), ("hipLaunchKernel",)]
    assert rows(trace, "ops", "kind") == [("fill",), ("kernel",)]


def test_rows_at_the_edge_of_the_window_and_unused_categories_are_counted(read):
    trace = read(
        kernel("k", 1, 1, 1),
        event("overhead", "Buffer Flush", 1, 1),
        {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 9},
        {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "python"}},
        {"ph": "s", "id": 1, "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 1, "ts": 1},
        **CUDA,
    )
    noted = codes(trace)
    assert noted["kineto.record-window-end"] == 1
    assert noted["kineto.events-not-used"] == 1
