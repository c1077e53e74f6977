"""The Kineto reader on small hand-written files: one rule each."""

import gzip
import json

import polars as pl
import pytest

from tracekit.formats import identify, silent
from tracekit.formats.kineto import FORMAT

ROCM = {"schemaVersion": 1, "roctracer_version": 4.1, "baseTimeNanoseconds": 10**18}
CUDA = {"schemaVersion": 1, "cupti_version": 18, "baseTimeNanoseconds": 10**18}


def event(category, name, ts, dur, pid=100, tid=100, **arguments):
    row = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur}
    return {**row, "args": arguments}


def call(name, ts, dur, correlation, category="cuda_runtime", **arguments):
    return event(category, name, ts, dur, correlation=correlation, **arguments)


def kernel(name, ts, dur, correlation, stream=7, device=0, category="kernel", **arguments):
    return event(
        category,
        name,
        ts,
        dur,
        device,
        stream,
        device=device,
        stream=stream,
        correlation=correlation,
        **arguments,
    )


def cuda_sync(kind, ts, dur, correlation, stream, **arguments):
    return event(
        "cuda_sync",
        kind,
        ts,
        dur,
        0,
        stream,
        cuda_sync_kind=kind,
        stream=stream,
        correlation=correlation,
        device=0,
        **arguments,
    )


@pytest.fixture
def read(tmp_path):
    """Write events as a Kineto file and read it."""

    def written_and_read(*events, **metadata):
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({**metadata, "traceEvents": events}))
        return FORMAT.read(path, silent)

    return written_and_read


def codes(trace):
    return {note.code: note.count for note in trace.notes}


def rows(trace, table, *columns):
    return trace.table(table).select(*columns).rows()


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


def test_times_are_the_base_plus_exact_nanoseconds(read):
    trace = read(
        kernel("a", 3520313156560.137, 2.825, 1),
        kernel("b", 3520313156570, 1, 2),
        **{**CUDA, "baseTimeNanoseconds": 1767189312000000000},
    )
    assert rows(trace, "ops", "start_ns", "end_ns") == [
        (1770709625156560137, 1770709625156562962),
        (1770709625156570000, 1770709625156571000),
    ]


def test_times_without_a_base_that_are_no_epoch_times_are_noted(read):
    assert "kineto.base-time-missing" in codes(read(kernel("k", 5.5, 1, 1)))
    assert "kineto.base-time-missing" not in codes(read(kernel("k", 1695835542514261, 1, 1)))


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


def test_metadata_may_stand_before_or_after_the_events_or_be_absent(tmp_path):
    events = json.dumps([kernel("k", 1.5, 1, 1)])
    for name, text in (
        ("before", f'{{"baseTimeNanoseconds": 5000, "traceEvents": {events}}}'),
        ("after", f'{{"traceEvents": {events}, "baseTimeNanoseconds": 5000}}'),
        ("bare", events),
        (
            "pretty",
            json.dumps(
                json.loads(f'{{"baseTimeNanoseconds": 5000, "traceEvents": {events}}}'), indent=4
            ),
        ),
    ):
        path = tmp_path / f"{name}.json"
        path.write_text(text)
        assert identify(path).name == "kineto"
        base = 0 if name == "bare" else 5000
        assert rows(FORMAT.read(path, silent), "ops", "start_ns") == [(base + 1500,)]


def test_gzip_is_read_in_all_its_members(tmp_path):
    text = json.dumps({"traceEvents": [kernel("k", 1, 1, 1)], **CUDA}).encode()
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(text[:90]) + gzip.compress(text[90:]))
    trace = FORMAT.read(path, silent)
    assert trace.table("ops").height == 1
    assert "kineto.truncated" not in codes(trace)


def test_progress_ends_at_the_size_of_the_file(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [kernel("k", 1, 1, 1)], **CUDA}))
    seen = []
    FORMAT.read(path, lambda done, total, what: seen.append((done, total, what)))
    size = path.stat().st_size
    assert seen[-1] == (size, size, "bytes")


def test_secrets_in_metadata_reach_no_table_and_no_note(read):
    trace = read(kernel("k", 1, 1, 1), env={"API_KEY": "hf_sekret"}, command="run --token sekret")
    text = str([trace.table(name).rows() for name in trace.frames]) + str(trace.notes)
    assert "sekret" not in text
