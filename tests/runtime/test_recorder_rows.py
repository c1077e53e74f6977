"""What the recorder writes of one small recording, by hand: as ROCm's views and as tracekit."""

import json

from polars.testing import assert_frame_equal
from recorder_rows import BUFFER, call, query, small_recording

from instrumented_runtime.recorder import Recorder, rocpd_rows
from instrumented_runtime.recorder.schema import TABLES
from tracekit.formats import read_trace, silent


def read(path):
    return read_trace([path], progress=silent)


def test_kernels_are_in_order_of_their_calls_with_stream_queue_and_sizes(tmp_path):
    path = small_recording(tmp_path).close()

    what = "id, category, region, name, dispatch_id, stack_id, parent_stack_id, corr_id"
    kernel = ("KERNEL_DISPATCH", "")
    assert query(path, f"SELECT {what} FROM kernels ORDER BY id") == [
        (1, *kernel, "gemm<4,float>", 1, 5, 5, 0),
        (2, *kernel, "softmax", 2, 6, 6, 0),
        (3, *kernel, "gemm<4,float>", 3, 6, 6, 0),
    ]
    where = "start, end, duration, pid, tid, agent_abs_index, agent_type, stream, queue, queue_id"
    agent, default = (1, "GPU"), ("Default Stream", "Queue 0")
    assert query(path, f"SELECT {where} FROM kernels ORDER BY id") == [
        (256, 276, 20, 1, 1, *agent, "Stream 0", "Queue 0", 1),
        (280, 290, 10, 1, 1, *agent, *default, 1),
        (290, 350, 60, 1, 1, *agent, *default, 1),
    ]
    sizes = "grid_x, grid_y, grid_z, workgroup_x, workgroup_y, lds_size, stream_id"
    assert query(path, f"SELECT {sizes} FROM kernels ORDER BY id") == [
        (1024, 1, 1, 256, 1, 0, 1),
        (64, 1, 1, 64, 1, 0, 0),
        (1024, 1, 1, 256, 1, 0, 0),
    ]


def test_regions_are_calls_and_ranges_and_what_has_no_length_is_a_sample(tmp_path):
    path = small_recording(tmp_path).close()

    columns = "id, category, name, pid, tid, start, end, duration, stack_id, parent_stack_id"
    hip, marker = "HIP_RUNTIME_API_EXT", "MARKER_CORE_RANGE_API"
    regions = [
        (1, hip, "hipMalloc", 1, 1, 100, 150, 50, 1, 0),
        (2, hip, "hipStreamCreateWithPriority", 1, 1, 160, 170, 10, 2, 0),
        (3, hip, "hipMemcpyAsync", 1, 1, 180, 200, 20, 3, 0),
        (4, marker, "roctxThreadRangeA", 1, 1, 210, 400, 190, 4, 0),
        (5, hip, "hipLaunchKernel", 1, 1, 220, 230, 10, 5, 0),
        (6, hip, "hipGraphLaunch", 1, 1, 240, 260, 20, 6, 0),
        (9, hip, "hipMemcpy", 1, 1, 320, 330, 10, 9, 0),
        (10, hip, "hipMemcpy", 1, 1, 340, 390, 50, 10, 0),
        (11, hip, "hipFree", 1, 1, 420, 440, 20, 11, 0),
    ]
    samples = [
        # The profiler names a sample by the track, and the track by the category.
        (7, marker, marker, 1, 1, 300, 300, 0, 7, 0),
        (8, hip, hip, 1, 1, 310, 310, 0, 8, 0),
    ]
    assert query(path, f"SELECT {columns} FROM regions ORDER BY id") == regions
    both = query(path, f"SELECT {columns} FROM regions_and_samples ORDER BY id")
    assert both == sorted(regions + samples)
    texts = query(path, "SELECT id, extdata FROM regions_and_samples WHERE extdata <> '{}'")
    assert {number: json.loads(text) for number, text in texts} == {
        4: {"message": "step 1"},
        7: {"message": 'token "7"'},
    }


def test_copies_name_both_ends_and_a_host_to_host_copy_is_a_call_only(tmp_path):
    path = small_recording(tmp_path).close()

    what = "id, category, tid, start, end, name, region_name, size, stack_id, parent_stack_id"
    assert query(path, f"SELECT {what} FROM memory_copies ORDER BY id") == [
        (1, "MEMORY_COPY", 1, 205, 255, "MEMORY_COPY_HOST_TO_DEVICE", None, 4096, 3, 3),
        (2, "MEMORY_COPY", 1, 360, 380, "MEMORY_COPY_DEVICE_TO_HOST", None, 8, 10, 10),
    ]
    where = (
        "stream_id, stream_name, queue_id, dst_device, dst_agent_type, dst_address,"
        " src_device, src_agent_type, src_address"
    )
    host, gpu = ("virtual-cpu", "CPU"), ("virtual-gfx950", "GPU")
    assert query(path, f"SELECT {where} FROM memory_copies ORDER BY id") == [
        (1, "Stream 0", None, *gpu, BUFFER, *host, 0x1000),
        (0, "Default Stream", None, *host, 0x3000, *gpu, BUFFER),
    ]


def test_an_allocation_names_its_agent_and_a_free_its_address_only(tmp_path):
    recorder = small_recording(tmp_path)
    call(recorder, 12, "hipHostMalloc", 450, 460, 0x8000, 64, 0)
    recorder.rows["allocations"].extend((12, 0, 0x8000, 64, 0, 452, 458))
    path = recorder.close()

    columns = (
        "id, category, tid, start, end, type, level, agent_name, address, size, queue_id,"
        " stream_id, stack_id, parent_stack_id"
    )
    allocation = "MEMORY_ALLOCATION"
    assert query(path, f"SELECT {columns} FROM memory_allocations ORDER BY id") == [
        (1, allocation, 1, 105, 145, "ALLOC", "REAL", "virtual-gfx950", BUFFER, 4096, 0, 0, 1, 0),
        (2, allocation, 1, 425, 435, "FREE", "REAL", None, BUFFER, 0, 0, 0, 11, 0),
        (3, allocation, 1, 452, 458, "ALLOC", "REAL", "virtual-cpu", 0x8000, 64, 0, 0, 12, 0),
    ]


def test_arguments_are_printed_as_the_profiler_prints_them(tmp_path):
    path = small_recording(tmp_path).close()

    columns = "stack_id, arg_position, arg_type, arg_name, arg_value"
    rows = query(path, f"SELECT {columns} FROM events_args ORDER BY 1, 2")
    assert [row for row in rows if row[0] in {1, 3, 5, 6, 8}] == [
        (1, 0, "void**", "ptr", "0x7f0000001000"),
        (1, 1, "unsigned long", "size", "4096"),
        (3, 0, "void*", "dst", "0x7f0000001000"),
        (3, 1, "void const*", "src", "0x1000"),
        (3, 2, "unsigned long", "sizeBytes", "4096"),
        (3, 3, "hipMemcpyKind", "kind", "HostToDevice"),
        (3, 4, "ihipStream_t*", "stream", "0x5000"),
        (5, 0, "void const*", "function_address", "0x200100"),
        (5, 1, "rocprofiler_dim3_t", "numBlocks", "{z=1, y=1, x=4}"),
        (5, 2, "rocprofiler_dim3_t", "dimBlocks", "{z=1, y=1, x=256}"),
        (5, 3, "unsigned long", "sharedMemBytes", "0"),
        (5, 4, "ihipStream_t*", "stream", "0x5000"),
        (6, 0, "hipGraphExec*", "graphExec", "0x9000"),
        (6, 1, "ihipStream_t*", "stream", "0"),
        (8, 0, "ihipEvent_t*", "event", "0x7700"),
    ]


def test_busy_and_top_add_times_up(tmp_path):
    path = small_recording(tmp_path).close()

    # 90 ns of kernels and 50 ns of the copy to the device; the other copy is billed to the host.
    assert query(path, "SELECT agent_id, type, GpuTime, WallTime FROM busy ORDER BY 1") == [
        (0, "CPU", 20, 175),
        (1, "GPU", 140, 175),
    ]
    columns = "name, total_calls, total_duration, average, round(percentage, 3)"
    assert query(path, f"SELECT {columns} FROM top_kernels") == [
        ("gemm<4,float>", 2, 0.08, 0.04, 88.889),
        ("softmax", 1, 0.01, 0.01, 11.111),
    ]
    # All: 90 + 70 of copies, 380 of calls and ranges.
    top = query(path, f"SELECT {columns} FROM top LIMIT 2")
    assert top == [
        ("roctxThreadRangeA", 1, 0.19, 0.19, 35.185),
        ("gemm<4,float>", 2, 0.08, 0.04, 14.815),
    ]


def test_the_file_says_that_it_is_a_model_and_holds_the_given_environment_only(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("API_TOKEN", "not-for-the-file")
    path = small_recording(tmp_path, pid=7, seed=3).close()

    process = query(path, "SELECT id, pid, init, fini, command, environment, extdata FROM "
        "rocpd_info_process")[0]  # fmt: skip
    assert process[:5] == (7, 7, 100, 440, "serve --tiny")
    assert json.loads(process[5]) == {
        "ROCPROF_HIP_RUNTIME_API_TRACE": "1",
        "ROCPROF_KERNEL_TRACE": "1",
        "ROCPROF_MEMORY_COPY_TRACE": "1",
        "ROCPROF_MEMORY_ALLOCATION_TRACE": "1",
        "ROCPROF_MARKER_API_TRACE": "1",
    }
    assert "not hardware" in process[6]
    agents = query(path, "SELECT id, type, name, product_name, extdata FROM rocpd_info_agent")
    assert [agent[:4] for agent in agents] == [
        (0, "CPU", "virtual-cpu", "virtual-cpu"),
        (1, "GPU", "virtual-gfx950", "virtual-gfx950"),
    ]
    assert all("not hardware" in agent[4] for agent in agents)
    assert query(path, "SELECT hostname, machine_id FROM rocpd_info_node") == [
        ("virtual", "virtual")
    ]
    assert b"not-for-the-file" not in path.read_bytes()
    assert path.name == "virtual_7.db"


def test_agents_have_every_field_that_a_real_agent_has(tmp_path, real_traces):
    real = query(
        real_traces / "rocpd/mi300x_rocm7.1_hip_args_redacted.db",
        "SELECT extdata FROM rocpd_info_agent",
    )
    mine = query(small_recording(tmp_path).close(), "SELECT extdata FROM rocpd_info_agent")

    # ROCm's tools fail on an absent field.
    def fields(value, path=()):
        inside = value.items() if isinstance(value, dict) else ()
        return {path}.union(*(fields(child, (*path, name)) for name, child in inside))

    mine_, real_ = ([fields(json.loads(text)) for (text,) in rows] for rows in (mine, real))
    assert [names - {("model",)} for names in mine_] == [real_[0], real_[0]]


def test_an_empty_recording_is_a_file_with_default_stream_and_queue(tmp_path):
    path = Recorder(tmp_path, environment={}).close()

    assert query(path, "SELECT id, name FROM rocpd_info_stream") == [(0, "Default Stream")]
    assert query(path, "SELECT id, name FROM rocpd_info_queue") == [(0, "Default Queue")]
    assert query(path, "SELECT count(*) FROM rocpd_event") == [(0,)]
    assert query(path, "PRAGMA foreign_key_check") == []


def test_rows_are_the_same_however_they_are_sliced(tmp_path, monkeypatch):
    whole = small_recording(tmp_path / "whole").close()
    monkeypatch.setattr(rocpd_rows, "SLICE", 2)
    sliced = small_recording(tmp_path / "sliced").close()

    for table in TABLES:
        rows = f"SELECT * FROM {table} ORDER BY id"
        assert query(sliced, rows) == query(whole, rows), table


def test_a_stream_queue_or_thread_that_nobody_named_is_there_all_the_same(tmp_path):
    with Recorder(tmp_path, environment={}) as recorder:
        call(recorder, 1, "hipDeviceSynchronize", 1, 2)
        recorder.rows["calls"].extend((2, 2, 0, 3, 4, 9, 1, 1, 0, 0))
        recorder.rows["dispatches"].extend((2, 9, 4, 6, 5, 8, 1, 1))
    path = recorder.close()

    assert query(path, "SELECT name, stream, queue, tid FROM kernels") == [
        ("unknown_kernel", "Stream 6", "Queue 4", 2)
    ]
    assert query(path, "SELECT id, tid FROM rocpd_info_thread") == [(1, 1), (2, 2)]
    assert query(path, "PRAGMA foreign_key_check") == []


def test_tracekit_reads_ops_calls_and_streams(tmp_path, frame):
    trace = read(small_recording(tmp_path).close())

    ops = """
        op_id kind   name                       process_id device_id queue_id stream_id start_ns end_ns call_id correlation_id graph_launch_id
        3     copy   MEMORY_COPY_HOST_TO_DEVICE 0          0         -        1         205      255    2       3              -
        0     kernel gemm<4,float>              0          0         1        1         256      276    3       5              -
        1     kernel softmax                    0          0         1        0         280      290    4       6              4
        2     kernel gemm<4,float>              0          0         1        0         290      350    4       6              4
        4     copy   MEMORY_COPY_DEVICE_TO_HOST 0          0         -        0         360      380    6       10             -
    """
    calls = """
        call_id process_id thread_id name                        kind          start_ns end_ns correlation_id stream_id graph_exec_key
        0       0          1         hipMalloc                   malloc        100      150    1              -         -
        1       0          1         hipStreamCreateWithPriority stream_create 160      170    2              1         -
        2       0          1         hipMemcpyAsync              copy          180      200    3              1         -
        3       0          1         hipLaunchKernel             launch        220      230    5              1         -
        4       0          1         hipGraphLaunch              graph_launch  240      260    6              0         36864
        5       0          1         hipMemcpy                   copy          320      330    9              0         -
        6       0          1         hipMemcpy                   copy          340      390    10             0         -
        7       0          1         hipFree                     free          420      440    11             -         -
        8       0          1         -                           other         310      310    8              -         -
    """
    for table, text in (("ops", ops), ("calls", calls)):
        assert_frame_equal(trace.table(table), frame(table, text), categorical_as_str=True)
    assert trace.table("streams").rows() == [
        (0, 0, 0, 0, "null", None, "Default Stream"),
        (1, 0, 0, 1, None, None, "Stream 0"),
    ]


def test_tracekit_reads_copies_and_ranges(tmp_path, frame):
    trace = read(small_recording(tmp_path).close())

    copies = """
        call_id op_id process_id dst_address     src_address     copied_bytes direction      is_blocking stream_id
        2       3     0          139637976731648 4096            4096         host-to-device -           1
        5       -     0          12288           4096            8            host-to-host   true        0
        6       4     0          12288           139637976731648 8            device-to-host true        0
    """
    assert_frame_equal(trace.table("copies"), frame("copies", copies))
    assert trace.table("ranges").rows() == [
        (0, "marker", 0, 1, "step 1", 210, 400, None),
        (1, "marker", 0, 1, 'token "7"', 300, 300, 0),
    ]
    assert trace.table("devices")["name"].to_list() == ["virtual-gfx950"]
    assert trace.table("processes")["node"].to_list() == ["virtual"]
    assert {note.code for note in trace.notes} == {
        # The copy from host to host; the stream's flags and the poll's name are not in such files.
        "rocpd.copies-without-op",
        "rocpd.model",
        "rocpd.stream-flags-unknown",
        "rocpd.calls-unnamed",
    }
