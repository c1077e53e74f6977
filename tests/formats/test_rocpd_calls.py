"""Host calls, their arguments, copies and markers of rocpd files."""

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from rocpd_files import small_file

from tracekit.formats import silent
from tracekit.formats.rocpd import FORMAT


def read(path):
    return FORMAT.read(path, silent)


def counts(trace):
    return {note.code: note.count for note in trace.notes}


def handles_by_call(trace):
    """The handle of each call's stream."""
    handles = dict(trace.table("streams").select("stream_id", "handle").iter_rows())
    return [handles.get(stream) for stream in trace.table("calls")["stream_id"]]


def test_calls_are_read_with_kind_thread_and_handles(tmp_path, frame):
    file = small_file(tmp_path / "a.db")
    file.thread(29)
    file.call("hipEventRecord", 3, 10, 20, event="0x121298a0", stream="0")
    file.call("hipEventSynchronize", 4, 20, 30, tid=29, event="0x121298a0")
    file.call("hipEventCreate", 5, 30, 40, event=["0x7ffc70b3d1c0"])

    trace = read(file.save())

    expected = """
        call_id process_id thread_id name                kind         start_ns end_ns correlation_id stream_id event_key
        0       0          28        hipEventRecord      event_record 10       20     3              0         303208608
        1       0          29        hipEventSynchronize event_sync   20       30     4              -         303208608
        2       0          28        hipEventCreate      other        30       40     5              -         -
    """
    assert_frame_equal(trace.table("calls"), frame("calls", expected), categorical_as_str=True)


@pytest.mark.parametrize(
    "category",
    ["HIP_RUNTIME_API_EXT", "HIP_RUNTIME_API", "HIP_COMPILER_API_EXT", "rocm_hip_api"],
)
def test_hip_categories_of_all_versions_are_calls(tmp_path, category):
    file = small_file(tmp_path / "a.db")
    file.call("hipLaunchKernel", 1, 10, 20, category=category)

    trace = read(file.save())

    assert trace.table("calls")["kind"].to_list() == ["launch"]
    assert trace.table("ranges").is_empty()


def test_hsa_calls_are_calls_and_rccl_calls_are_ranges(tmp_path):
    file = small_file(tmp_path / "a.db")
    file.call("hsa_signal_create", 1, 10, 20, category="HSA_CORE_API")
    file.call("ncclAllReduce", 2, 20, 30, category="RCCL_API")
    file.call("KFD_PAGE_FAULT", 3, 30, 40, category="KFD_PAGE_FAULT")

    trace = read(file.save())

    assert trace.table("calls").select("name", "kind").rows() == [("hsa_signal_create", "other")]
    assert trace.table("ranges").select("text", "kind").rows() == [("ncclAllReduce", "operator")]
    assert counts(trace)["rocpd.regions-skipped"] == 1


def test_an_op_issued_by_an_hsa_call_joins_the_hip_call_around_it(tmp_path):
    file = small_file(tmp_path / "a.db")
    file.call("hipMemcpy", 4, 10, 40)
    file.call("hsa_amd_memory_async_copy", 5, 20, 30, category="HSA_AMD_EXT_API", parent=4)
    file.call("hsa_amd_memory_async_copy", 6, 50, 60, category="HSA_AMD_EXT_API")
    file.memory_copy("MEMORY_COPY_HOST_TO_DEVICE", 5, 25, 35, 64)
    file.memory_copy("MEMORY_COPY_HOST_TO_DEVICE", 6, 55, 65, 64)

    assert read(file.save()).table("ops")["call_id"].to_list() == [0, 2]


def test_a_call_on_one_clock_tick_is_read_from_the_samples_without_its_name(tmp_path):
    file = small_file(tmp_path / "a.db")
    file.call("hipEventRecord", 3, 10, 10, event="0x12", stream="0")

    trace = read(file.save())

    calls = trace.table("calls")
    assert calls.select("name", "start_ns", "end_ns", "thread_id").rows() == [(None, 10, 10, 28)]
    assert calls["kind"].to_list() == ["other"]
    assert counts(trace)["rocpd.calls-unnamed"] == 1


def test_a_call_without_an_op_finds_its_stream_through_launches_on_the_same_pointer(tmp_path):
    file = small_file(tmp_path / "a.db")
    file.call("hipLaunchKernel", 1, 10, 20, stream="0xaa")
    file.dispatch("k", 1, 30, 40, stream=3)
    file.call("hipEventRecord", 2, 50, 60, event="0x1", stream="0xaa")
    file.call("hipStreamSynchronize", 3, 60, 70, stream="0xbb")

    assert handles_by_call(read(file.save())) == [3, 3, None]


def test_a_destroyed_streams_pointer_means_another_stream_afterwards(tmp_path):
    file = small_file(tmp_path / "a.db")
    file.call("hipLaunchKernel", 1, 10, 20, stream="0xaa")
    file.dispatch("k", 1, 30, 40, stream=3)
    file.call("hipEventRecord", 2, 50, 60, event="0x1", stream="0xaa")
    file.call("hipStreamDestroy", 3, 70, 80, stream="0xaa")
    file.call("hipEventRecord", 4, 90, 100, event="0x1", stream="0xaa")
    file.call("hipLaunchKernel", 5, 110, 120, stream="0xaa")
    file.dispatch("k", 5, 130, 140, stream=4)
    file.call("hipEventRecord", 6, 150, 160, event="0x1", stream="0xaa")

    assert handles_by_call(read(file.save())) == [3, 3, None, 4, 4, 4]


def test_the_pointer_of_a_stream_destroyed_before_any_launch_stays_unknown(tmp_path):
    file = small_file(tmp_path / "a.db")
    file.call("hipEventRecord", 1, 10, 20, event="0x1", stream="0xaa")
    file.call("hipStreamDestroy", 2, 30, 40, stream="0xaa")
    file.call("hipLaunchKernel", 3, 50, 60, stream="0xaa")
    file.dispatch("k", 3, 70, 80, stream=4)

    assert handles_by_call(read(file.save())) == [None, None, 4]


def test_reserved_handles_mean_the_null_stream_or_nothing_known(tmp_path):
    file = small_file(tmp_path / "a.db")
    file.call("hipStreamSynchronize", 1, 10, 20, stream="0")
    file.call("hipStreamSynchronize", 2, 20, 30, stream="0x1")
    file.call("hipStreamSynchronize", 3, 30, 40, stream="0x2")
    file.call("hipStreamSynchronize_spt", 4, 40, 50, stream="0")
    file.call("hipStreamSynchronize", 5, 50, 60, stream="(null)")

    assert handles_by_call(read(file.save())) == [0, 0, None, None, 0]


def test_where_a_handle_will_be_put_is_not_the_handle(tmp_path):
    file = small_file(tmp_path / "a.db")
    file.call("hipLaunchKernel", 1, 10, 20, stream="0xaa")
    file.dispatch("k", 1, 30, 40, stream=3)
    file.call("hipStreamCreate", 2, 50, 60, stream=["0xaa"])

    assert handles_by_call(read(file.save())) == [3, None]


def test_a_graph_launch_is_on_the_stream_it_names_not_on_those_of_its_kernels(tmp_path):
    file = small_file(tmp_path / "a.db")
    file.call("hipLaunchKernel", 1, 10, 20, stream="0xaa")
    file.dispatch("k", 1, 30, 40, stream=3)
    file.call("hipGraphLaunch", 2, 50, 60, graphExec="0x5", stream="0xaa")
    file.dispatch("branch", 2, 70, 80, stream=9)

    assert handles_by_call(read(file.save())) == [3, 3]


def test_a_copy_is_a_request_with_or_without_an_op(tmp_path, frame):
    file = small_file(tmp_path / "a.db")
    host, device = "0x7f1b841f7010", "0x7eda00200000"
    file.call("hipMemcpy", 1, 10, 20, dst=device, src=host, sizeBytes="64", kind="HostToDevice")
    file.call(
        "hipMemcpyAsync",
        *(2, 20, 30),
        dst=host,
        src=device,
        sizeBytes="8",
        kind="Default",
        stream="0",
    )
    file.memory_copy("MEMORY_COPY_DEVICE_TO_HOST", 2, 40, 50, 8, dst=0, src=2)
    file.memory_copy("MEMORY_COPY_HOST_TO_DEVICE", 9, 60, 70, 16, dst_address=32, src_address=48)

    trace = read(file.save())

    expected = """
        call_id op_id process_id dst_address     src_address     copied_bytes direction      stream_id
        0       -     0          139474770067456 139756157497360 64           host-to-device 0
        1       0     0          139756157497360 139474770067456 8            device-to-host 0
        -       1     0          32              48              16           host-to-device 0
    """
    blocking = pl.Series("is_blocking", [True, None, None], dtype=pl.Boolean)
    expected = frame("copies", expected).with_columns(blocking)
    assert_frame_equal(trace.table("copies"), expected)
    assert counts(trace)["rocpd.copies-without-op"] == 1


@pytest.mark.parametrize(
    ("name", "arguments", "direction", "copied_bytes"),
    [
        ("hipMemcpyHtoD", {"sizeBytes": "8"}, "host-to-device", 8),
        ("hipMemcpyDtoHAsync", {"sizeBytes": "8"}, "device-to-host", 8),
        ("hipMemcpy", {"sizeBytes": "8", "kind": "3"}, "device-to-device", 8),
        ("hipMemcpyPeer", {"sizeBytes": "8"}, "peer-to-peer", 8),
        (
            "hipMemcpy2D",
            {"width": "8", "height": "3", "kind": "DeviceToHost"},
            "device-to-host",
            24,
        ),
        ("hipMemcpy", {"sizeBytes": "8", "kind": "Default"}, None, 8),
        ("hipMemcpy", {}, None, None),
    ],
)
def test_directions_and_sizes_of_copy_variants(tmp_path, name, arguments, direction, copied_bytes):
    file = small_file(tmp_path / "a.db")
    file.call(name, 1, 10, 20, **arguments)

    copies = read(file.save()).table("copies")

    assert copies.select("direction", "copied_bytes").rows() == [(direction, copied_bytes)]


def test_a_copy_in_pieces_has_its_first_op_and_whole_size(tmp_path):
    file = small_file(tmp_path / "a.db")
    file.call("hipMemcpy", 1, 10, 90)
    file.memory_copy("MEMORY_COPY_HOST_TO_DEVICE", 1, 20, 30, 64)
    file.memory_copy("MEMORY_COPY_HOST_TO_DEVICE", 1, 30, 40, 36)

    copies = read(file.save()).table("copies")

    assert copies.select("call_id", "op_id", "copied_bytes").rows() == [(0, 0, 100)]


def test_markers_are_ranges_with_the_text_of_their_message(tmp_path, frame):
    file = small_file(tmp_path / "a.db")
    file.call("hipMalloc", 1, 0, 5)
    file.marker("tk1-step-1", 2, 10, 100)
    file.marker("inner", 3, 20, 30)
    file.marker("here", 4, 25, 25, name="roctxMarkA")

    trace = read(file.save())

    expected = """
        range_id kind   process_id thread_id text       start_ns end_ns parent_id
        0        marker 0          28        tk1-step-1 10       100    -
        1        marker 0          28        inner      20       30     0
        2        marker 0          28        here       25       25     1
    """
    assert_frame_equal(trace.table("ranges"), frame("ranges", expected))


def test_calls_without_arguments_are_noted(tmp_path):
    file = small_file(tmp_path / "a.db")
    file.call("hipLaunchKernel", 1, 10, 20)

    assert counts(read(file.save()))["rocpd.arguments-not-collected"] == 1
