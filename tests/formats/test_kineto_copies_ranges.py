"""Copies and host ranges of Kineto files."""

from functools import partial

import pytest
from kineto_events import CUDA, ROCM, call, codes, event, kernel, read_events, rows


@pytest.fixture
def read(tmp_path):
    return partial(read_events, tmp_path)


def test_a_copy_call_carries_its_arguments_and_its_op(read):
    trace = read(
        call("hipMemcpyWithStream", 1, 50, 5, src="0x7e11aac0", dst="0x10", bytes="616", kind="1"),
        kernel("Memcpy HtoD (Host -> Device)", 9, 6, 5, 0, category="gpu_memcpy", kind="HtoD"),
        **ROCM,
    )
    (copy,) = trace.table("copies").rows(named=True)
    assert copy == {
        "call_id": 0,
        "op_id": 0,
        "process_id": 0,
        "dst_address": 0x10,
        "src_address": 0x7E11AAC0,
        "copied_bytes": 616,
        "direction": "host-to-device",
        "is_blocking": True,
        "is_pinned": None,
        "stream_id": None,
    }


def test_a_copys_direction_is_the_one_asked_for_and_else_the_ops(read):
    trace = read(
        call("hipMemcpyAsync", 1, 1, 1, bytes="8", kind="1"),
        call("hipMemcpyAsync", 2, 1, 2, bytes="8", kind="4"),
        kernel("Memcpy DtoD (Device -> Device)", 5, 1, 1, category="gpu_memcpy", kind="DtoD"),
        kernel("Memcpy DtoH (Device -> Host)", 6, 1, 2, category="gpu_memcpy", kind="DtoH"),
        **ROCM,
    )
    assert rows(trace, "copies", "direction") == [("host-to-device",), ("device-to-host",)]


def test_copies_without_call_or_without_op_have_a_row_each(read):
    trace = read(
        call("cudaMemcpyAsync", 1, 1, 1),
        kernel("Memcpy DtoH (Device -> Pinned)", 5, 1, 9, category="gpu_memcpy", bytes=64),
        kernel("Memcpy PtoP (Device -> Device)", 7, 1, 10, category="gpu_memcpy", bytes=32),
        **CUDA,
    )
    columns = ("call_id", "op_id", "copied_bytes", "direction", "is_pinned", "is_blocking")
    assert rows(trace, "copies", *columns) == [
        (0, None, None, None, None, None),
        (None, 0, 64, "device-to-host", True, None),
        (None, 1, 32, "peer-to-peer", None, None),
    ]


def test_ranges_nest_by_thread_and_know_their_kind(read):
    trace = read(
        event("user_annotation", "step", 0, 100),
        event("cpu_op", "aten::add", 10, 20),
        event("cpu_op", "aten::add_", 12, 5),
        event("cpu_op", "elsewhere", 12, 5, tid=101),
        {"ph": "i", "cat": "user_annotation", "name": "mark", "pid": 100, "tid": 100, "ts": 50},
        **CUDA,
    )
    assert rows(trace, "ranges", "text", "kind", "parent_id") == [
        ("step", "marker", None),
        ("aten::add", "operator", 0),
        ("aten::add_", "operator", 1),
        ("elsewhere", "operator", None),
        ("mark", "marker", 0),
    ]


def test_python_frames_are_kept_only_around_calls_that_can_block(read):
    trace = read(
        event("python_function", "main.py(1): run", 0, 100),
        event("python_function", "main.py(9): item", 10, 20),
        event("python_function", "main.py(5): quick", 40, 20),
        event("python_function", "main.py(7): another thread", 0, 100, tid=101),
        call("hipMemcpyWithStream", 12, 9, 1),
        call("hipLaunchKernel", 45, 5, 2),
        **ROCM,
    )
    expected = [("main.py(1): run", None), ("main.py(9): item", 0)]
    assert rows(trace, "ranges", "text", "parent_id") == expected
    assert codes(trace)["kineto.frames-dropped"] == 2


@pytest.mark.parametrize("dur", [4.999, "4.999"])
def test_python_frames_too_short_to_hold_a_wait_are_left_out_and_counted(read, dur):
    trace = read(
        event("python_function", "main.py(1): run", 0, 100),
        event("python_function", "main.py(9): item", 10, 5.0),
        event("python_function", "main.py(9): look", 10, dur),
        call("hipStreamSynchronize", 11, 1, 1),
        **ROCM,
    )
    assert rows(trace, "ranges", "text") == [("main.py(1): run",), ("main.py(9): item",)]
    assert codes(trace)["kineto.frames-dropped"] == 1
