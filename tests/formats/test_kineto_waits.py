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


def wait(ts, correlation, stream, on, recorded, device=0):
    row = cuda_sync(
        "Stream Wait Event",
        ts,
        0,
        correlation,
        stream,
        wait_on_stream=on,
        wait_on_cuda_event_record_corr_id=recorded,
        wait_on_cuda_event_id=19,
    )
    row["args"]["device"] = row["pid"] = device
    return row


def pending_us(trace):
    """Return the pending interval of each wait in µs."""
    times = ((pl.col(f"pending_{edge}_ns") - 10**18) // 1000 for edge in ("start", "end"))
    return trace.table("waits").select(times).rows()


def numbered(trace):
    """Return device number and handle of each stream."""
    devices = dict(rows(trace, "process_devices", "device_id", "local_index"))
    streams = rows(trace, "streams", "stream_id", "device_id", "handle")
    return {stream: (devices[device], handle) for stream, device, handle in streams}


def recorders(trace):
    """Return device number and handle of each wait's recording stream."""
    streams = numbered(trace)
    return [streams.get(stream) for (stream,) in rows(trace, "waits", "recording_stream_id")]


def chain_over_stream_22(*ops):
    """Stream 20 runs A, 22 waits for it and 28 waits for 22, which has nothing behind its wait."""
    return (
        call("cudaLaunchKernel", 0, 1, 1),
        call("cudaEventRecord", 2, 1, 3),
        call("cudaStreamWaitEvent", 3, 1, 4),
        call("cudaEventRecord", 4, 1, 5),
        call("cudaStreamWaitEvent", 5, 1, 6),
        call("cudaLaunchKernel", 6, 1, 7),
        kernel("A", 10, 990, 1, stream=20),
        kernel("after", 1005, 10, 7, stream=28),
        wait(3, 4, 22, 20, 3),
        wait(5, 6, 28, 22, 5),
        *ops,
    )


def test_a_record_on_a_stream_that_itself_waits_is_done_when_that_wait_is_over(read):
    early = kernel("early", 10, 5, 2, stream=22)
    trace = read(call("cudaLaunchKernel", 1, 1, 2), early, *chain_over_stream_22(), **CUDA)
    assert pending_us(trace) == [(15, 1000), (6, 1000)]


def test_a_wait_is_followed_through_a_stream_without_any_op(read):
    assert pending_us(read(*chain_over_stream_22(), **CUDA)) == [(4, 1000), (6, 1000)]


def test_what_a_stream_waits_for_after_the_record_does_not_hold_the_record_up(read):
    trace = read(
        call("cudaLaunchKernel", 0, 1, 1),
        call("cudaLaunchKernel", 1, 1, 2),
        call("cudaEventRecord", 2, 1, 3),
        call("cudaEventRecord", 3, 1, 4),
        call("cudaStreamWaitEvent", 4, 1, 5),
        call("cudaStreamWaitEvent", 5, 1, 6),
        kernel("A", 10, 990, 1, stream=20),
        kernel("early", 10, 5, 2, stream=22),
        wait(4, 5, 22, 20, 3),
        wait(5, 6, 28, 22, 4),
        **CUDA,
    )
    assert pending_us(trace) == [(15, 1000), (6, 15)]


def across_devices(*more):
    return (
        call("cudaLaunchKernel", 0, 1, 1),
        call("cudaEventRecord", 2, 1, 3),
        call("cudaStreamWaitEvent", 3, 1, 4),
        kernel("recorded", 10, 90, 1, stream=20, device=1),
        wait(3, 4, 24, 20, 3),
        *more,
    )


def test_a_wait_for_another_devices_stream_finds_it_and_makes_no_stream_up(read):
    trace = read(*across_devices(), **CUDA)
    assert recorders(trace) == [(1, 20)]
    assert pending_us(trace) == [(4, 100)]
    assert sorted(numbered(trace).values()) == [(0, 24), (1, 20)]
    record = trace.table("calls").filter(pl.col("name") == "cudaEventRecord")
    assert record["stream_id"].to_list() == trace.table("waits")["recording_stream_id"].to_list()


def test_of_one_number_on_two_devices_the_waits_own_is_taken(read):
    trace = read(*across_devices(kernel("own", 5, 10, 2, stream=20)), **CUDA)
    assert recorders(trace) == [(0, 20)]
    assert pending_us(trace) == [(4, 15)]


def test_the_record_calls_own_row_says_on_which_device_its_stream_is(read):
    own = kernel("own", 5, 10, 2, stream=20)
    recorded = kernel("cudaEventRecord", 2, 0, 3, stream=20, device=1, category="cuda_event")
    trace = read(*across_devices(own, recorded), **CUDA)
    assert recorders(trace) == [(1, 20)]
    assert pending_us(trace) == [(4, 100)]


def test_of_one_number_on_several_other_devices_none_is_taken(read):
    trace = read(*across_devices(kernel("other", 5, 10, 2, stream=20, device=2)), **CUDA)
    assert recorders(trace) == [None]
    assert pending_us(trace) == [(4, None)]


def test_a_number_that_no_row_has_is_a_stream_only_where_the_process_has_one_device(read):
    asked = (call("cudaStreamWaitEvent", 3, 1, 4), wait(3, 4, 24, 20, 3))
    assert recorders(read(*asked, **CUDA)) == [(0, 20)]
    assert recorders(read(*asked, kernel("k", 5, 1, 1, device=1), **CUDA)) == [None]


def test_a_record_after_a_graph_launch_is_done_when_the_whole_graph_is(read):
    trace = read(
        call("cudaGraphLaunch", 0, 1, 1),
        call("cudaEventRecord", 2, 1, 3),
        call("cudaStreamWaitEvent", 3, 1, 4),
        call("cudaLaunchKernel", 4, 1, 5),
        call("cudaEventRecord", 5, 1, 6),
        call("cudaStreamWaitEvent", 6, 1, 7),
        kernel("root", 10, 10, 1, stream=20),
        kernel("branch", 20, 490, 1, stream=21),
        kernel("longer branch", 20, 580, 1, stream=22),
        kernel("after", 612, 10, 5, stream=28),
        wait(3, 4, 28, 20, 3),
        wait(6, 7, 29, 21, 6),
        **CUDA,
    )
    # The launch stream is done with the longest branch; a branch's stream with its own.
    assert pending_us(trace) == [(4, 600), (7, 510)]
