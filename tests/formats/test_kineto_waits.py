"""Streams, queues and waits of Kineto files."""

from functools import partial

import polars as pl
import pytest
from kineto_events import CUDA, ROCM, call, codes, cuda_sync, kernel, read_events, rows


@pytest.fixture
def read(tmp_path):
    return partial(read_events, tmp_path)


def test_on_rocm_stream_is_the_hardware_queue_and_waits_are_unknown(read):
    trace = read(
        call("hipStreamWaitEvent", 1, 1, 1), kernel("k", 3, 1, 2, stream=4, device=2), **ROCM
    )
    assert rows(trace, "queues", "handle", "name") == [(4, "queue 4")]
    assert trace.table("streams").is_empty()
    assert rows(trace, "ops", "queue_id", "stream_id") == [(0, None)]
    noted = codes(trace)
    assert noted["kineto.stream-is-queue"] == 1
    assert noted["kineto.waits-unknown"] == 1


def test_with_hsa_queue_stream_and_queue_are_both_known(read):
    trace = read(
        kernel("a", 1, 2, 1, stream=1, hsa_queue=5),
        kernel("b", 4, 2, 2, stream=2, hsa_queue=5),
        **ROCM,
    )
    assert rows(trace, "ops", "stream_id", "queue_id") == [(0, 0), (1, 0)]
    expected = [(0, 0, 10**18 + 1000, 10**18 + 3000, 1), (1, 0, 10**18 + 4000, 10**18 + 6000, 1)]
    assert trace.table("stream_queues").rows() == expected
    assert "kineto.stream-is-queue" not in codes(trace)


def test_a_wait_is_pending_from_the_waiting_streams_last_op_to_the_recorded_ops_end(read):
    trace = read(
        call("cudaLaunchKernel", 0, 1, 1),
        call("cudaLaunchKernel", 1, 1, 2),
        call("cudaEventRecord", 2, 1, 3),
        call("cudaLaunchKernel", 3, 1, 4),
        call("cudaStreamWaitEvent", 4, 1, 5),
        call("cudaLaunchKernel", 6, 1, 6),
        kernel("recorded", 10, 90, 1, stream=20),
        kernel("before the wait", 10, 30, 2, stream=24),
        kernel("after the record", 100, 900, 4, stream=20),
        kernel("after the wait", 100, 5, 6, stream=24),
        cuda_sync(
            "Stream Wait Event",
            4,
            0,
            5,
            24,
            wait_on_stream=20,
            wait_on_cuda_event_record_corr_id=3,
            wait_on_cuda_event_id=19,
        ),
        **CUDA,
    )
    (wait,) = trace.table("waits").rows(named=True)
    handles = dict(rows(trace, "streams", "stream_id", "handle"))
    names = dict(rows(trace, "calls", "call_id", "name"))
    assert handles[wait["waiting_stream_id"]] == 24
    assert handles[wait["recording_stream_id"]] == 20
    assert names[wait["wait_call_id"]] == "cudaStreamWaitEvent"
    assert names[wait["record_call_id"]] == "cudaEventRecord"
    assert wait["pending_start_ns"] == 10**18 + 40_000
    assert wait["pending_end_ns"] == 10**18 + 100_000
    assert wait["evidence"] == "recorded"
    known = trace.table("calls").filter(pl.col("event_key") == 19)
    assert known.select("name", "stream_id").rows() == [
        ("cudaEventRecord", wait["recording_stream_id"]),
        ("cudaStreamWaitEvent", wait["waiting_stream_id"]),
    ]
    assert "kineto.waits-not-collected" not in codes(trace)


def test_a_wait_whose_record_call_is_unknown_has_no_end(read):
    trace = read(
        call("cudaStreamWaitEvent", 4, 1, 5),
        kernel("k", 1, 1, 2, stream=20),
        cuda_sync(
            "Stream Wait Event",
            4,
            0,
            5,
            24,
            wait_on_stream=-1,
            wait_on_cuda_event_record_corr_id=-1,
            wait_on_cuda_event_id=19,
        ),
        **CUDA,
    )
    columns = ("recording_stream_id", "record_call_id", "pending_start_ns", "pending_end_ns")
    assert rows(trace, "waits", *columns) == [(None, None, 10**18 + 5000, None)]


def test_work_queued_before_the_window_counts_as_given_before_the_record(read):
    trace = read(
        call("cudaEventRecord", 2, 0, 30),
        call("cudaLaunchKernel", 2, 0, 31),
        call("cudaStreamWaitEvent", 2, 0, 32),
        kernel("queued before", 5, 10, 7, stream=20),
        kernel("given after the record, in the same microsecond", 15, 10, 31, stream=20),
        cuda_sync(
            "Stream Wait Event",
            2,
            0,
            32,
            24,
            wait_on_stream=20,
            wait_on_cuda_event_record_corr_id=30,
            wait_on_cuda_event_id=19,
        ),
        **CUDA,
    )
    expected = [(10**18 + 2_000, 10**18 + 15_000)]
    assert rows(trace, "waits", "pending_start_ns", "pending_end_ns") == expected


def test_a_wait_for_work_done_long_ago_has_no_length(read):
    trace = read(
        call("cudaLaunchKernel", 0, 1, 1),
        call("cudaEventRecord", 2, 1, 3),
        call("cudaStreamWaitEvent", 50, 1, 5),
        kernel("k", 3, 1, 1, stream=20),
        cuda_sync(
            "Stream Wait Event",
            50,
            0,
            5,
            24,
            wait_on_stream=20,
            wait_on_cuda_event_record_corr_id=3,
            wait_on_cuda_event_id=19,
        ),
        **CUDA,
    )
    expected = [(10**18 + 51_000, 10**18 + 51_000)]
    assert rows(trace, "waits", "pending_start_ns", "pending_end_ns") == expected


def test_a_stream_sync_call_gets_its_stream_and_minus_one_is_no_stream(read):
    trace = read(
        call("cudaStreamSynchronize", 1, 5, 1),
        call("cudaDeviceSynchronize", 7, 5, 2),
        cuda_sync("Stream Sync", 1, 5, 1, 7),
        cuda_sync("Context Sync", 7, 5, 2, 4294967295),
        **CUDA,
    )
    assert rows(trace, "streams", "handle") == [(7,)]
    assert rows(trace, "calls", "stream_id") == [(0,), (None,)]
    assert trace.table("waits").is_empty()
