"""Device ops of rocpd files and the calls behind them."""

import sqlite3

from polars.testing import assert_frame_equal
from rocpd_files import small_file

from tracekit.formats import silent
from tracekit.formats.rocpd import FORMAT


def read(path):
    return FORMAT.read(path, silent)


def counts(trace):
    return {note.code: note.count for note in trace.notes}


def test_a_dispatch_joins_the_call_with_its_stack_id(tmp_path, frame):
    file = small_file(tmp_path / "a.db")
    file.call("hipMalloc", 7, 10, 20)
    file.call("hipLaunchKernel", 8, 30, 40)
    file.dispatch("gemm", 8, 50, 90, stream=0)

    trace = read(file.save())

    expected = """
        op_id kind   name process_id device_id queue_id stream_id start_ns end_ns call_id correlation_id
        0     kernel gemm 0          0         1        0         50       90     1       8
    """
    assert_frame_equal(trace.table("ops"), frame("ops", expected), categorical_as_str=True)


def test_the_kernels_of_a_graph_share_its_launch(tmp_path):
    file = small_file(tmp_path / "a.db")
    file.call("hipGraphLaunch", 5, 10, 20, graphExec="0x77", stream="0")
    file.dispatch("first", 5, 30, 40, dispatch_id=1)
    file.dispatch("second", 5, 40, 50, dispatch_id=2)

    trace = read(file.save())

    assert trace.table("ops")["graph_launch_id"].to_list() == [0, 0]
    assert trace.table("calls")["graph_exec_key"].to_list() == [0x77]


def test_an_op_from_a_graph_names_executable_and_node_and_node_0_is_one(tmp_path):
    file = small_file(tmp_path / "a.db", newest=True)
    file.dispatch("in", 5, 30, 40, graph_exec_id=3, graph_node_id=0)
    file.dispatch("out", 6, 40, 50)

    ops = read(file.save()).table("ops")

    assert ops["graph_exec_id"].to_list() == [3, None]
    assert ops["graph_node"].to_list() == [0, None]


def test_a_graph_launch_row_tells_the_executable_of_ops_without_the_column(tmp_path):
    file = small_file(tmp_path / "a.db", newest=True)
    launch = file.event("HIP_GRAPH", 5)
    file.insert("rocpd_graph_launch", nid=1, pid=28, event_id=launch, graph_exec_id=9)
    file.dispatch("in", 5, 30, 40)

    assert read(file.save()).table("ops")["graph_exec_id"].to_list() == [9]


def test_blit_kernels_are_copies_and_fills(tmp_path):
    file = small_file(tmp_path / "a.db")
    file.dispatch("__amd_rocclr_copyBufferAligned", 1, 10, 20)
    file.dispatch("__amd_rocclr_fillBufferAligned", 2, 20, 30)
    file.dispatch("__amd_rocclr_initHeap", 3, 30, 40)

    assert read(file.save()).table("ops")["kind"].to_list() == ["copy", "fill", "kernel"]


def test_a_memory_copy_runs_on_the_gpu_of_its_two_ends_and_on_no_queue(tmp_path):
    file = small_file(tmp_path / "a.db")
    file.agent(3, type_index=1)
    file.memory_copy("MEMORY_COPY_HOST_TO_DEVICE", 1, 10, 20, 64, dst=2, src=0)
    file.memory_copy("MEMORY_COPY_DEVICE_TO_HOST", 2, 20, 30, 64, dst=0, src=3, queue_id=0)
    file.memory_copy("MEMORY_COPY_DEVICE_TO_DEVICE", 3, 30, 40, 64, dst=3, src=2)

    trace = read(file.save())

    assert trace.table("ops")["device_id"].to_list() == [0, 1, 1]
    assert trace.table("ops")["queue_id"].null_count() == 3
    assert trace.table("copies")["direction"].to_list() == [
        "host-to-device",
        "device-to-host",
        "peer-to-peer",
    ]


def test_rows_that_an_inner_join_would_drop_stay(tmp_path):
    file = small_file(tmp_path / "a.db")
    file.dispatch("gemm", 1, 10, 20, queue=99, stream=77, agent=2, kernel_id=12345)
    file.insert(
        "rocpd_kernel_dispatch",
        nid=1,
        pid=28,
        agent_id=55,
        kernel_id=1,
        dispatch_id=9,
        queue_id=99,
        stream_id=0,
        start=30,
        end=40,
    )

    trace = read(file.save())

    ops, queues = trace.table("ops"), trace.table("queues")
    assert ops["name"].to_list() == [None, "gemm"]
    assert ops["device_id"].to_list() == [0, None]
    assert queues.filter(queues["handle"] == 99).height == 1
    assert 77 in trace.table("streams")["handle"]


def test_an_op_that_ends_before_it_starts_has_no_length_and_is_counted(tmp_path):
    file = small_file(tmp_path / "a.db")
    file.call("hipLaunchKernel", 1, 10, 5)
    file.dispatch("gemm", 1, 50, 40)
    file.dispatch("gemm", 2, 60, 70)

    trace = read(file.save())

    assert trace.table("ops")["end_ns"].to_list() == [50, 70]
    assert trace.table("calls")["end_ns"].to_list() == [10]
    assert counts(trace)["rocpd.negative-durations"] == 2


def test_an_op_before_its_call_is_counted(tmp_path):
    file = small_file(tmp_path / "a.db")
    file.call("hipLaunchKernel", 1, 100, 110)
    file.dispatch("gemm", 1, 90, 95)

    assert counts(read(file.save()))["rocpd.ops-before-call"] == 1


def test_a_dispatch_that_is_there_twice_is_kept_once(tmp_path):
    file = small_file(tmp_path / "a.db")
    file.dispatch("gemm", 1, 10, 20, dispatch_id=4)
    file.dispatch("gemm", 1, 10, 20, dispatch_id=4)
    file.dispatch("gemm", 2, 10, 20, dispatch_id=5)

    trace = read(file.save())

    assert trace.table("ops").height == 2
    assert counts(trace)["rocpd.duplicate-dispatches"] == 1


def test_ops_of_a_kernel_only_capture_have_no_call_and_the_trace_says_why(tmp_path):
    file = small_file(tmp_path / "a.db", environment={"ROCPROF_KERNEL_TRACE": "1"})
    file.dispatch("gemm", 1, 10, 20)

    trace = read(file.save())

    assert trace.table("ops")["call_id"].to_list() == [None]
    assert "rocpd.calls-not-collected" in counts(trace)
    assert "rocpd.ops-without-call" not in counts(trace)
    assert trace.table("processes")["collected"].to_list() == [["ops"]]


def test_ops_whose_call_is_outside_the_window_are_counted(tmp_path):
    file = small_file(tmp_path / "a.db")
    file.call("hipLaunchKernel", 8, 30, 40)
    file.dispatch("early", 2, 10, 20)
    file.dispatch("late", 8, 50, 90)

    assert counts(read(file.save()))["rocpd.ops-without-call"] == 1


def test_stack_id_0_means_none_and_joins_nothing(tmp_path):
    file = small_file(tmp_path / "a.db")
    file.call("hipLaunchKernel", 0, 30, 40)
    file.dispatch("gemm", 0, 50, 90)

    assert read(file.save()).table("ops")["call_id"].to_list() == [None]


def test_ids_scattered_over_a_wide_range_join_all_the_same(tmp_path):
    file = small_file(tmp_path / "a.db")
    far = 1 << 40
    file.call("hipLaunchKernel", 7, 10, 20)
    file.call("hipLaunchKernel", far, 30, 40)
    file.dispatch("near", 7, 50, 60, id=3)
    file.dispatch("far", far, 60, 70, id=far)
    connection = file.connection
    connection.execute(f"UPDATE rocpd_event{file.suffix} SET id = id * {far}")
    for table in ("rocpd_region", "rocpd_kernel_dispatch"):
        connection.execute(f"UPDATE {table}{file.suffix} SET event_id = event_id * {far}")

    ops = read(file.save()).table("ops")

    assert ops.select("name", "call_id").rows() == [("near", 0), ("far", 1)]


def test_counters_are_summed_over_instances_and_dated_by_their_dispatch(tmp_path, frame):
    file = small_file(tmp_path / "a.db")
    waves = file.insert(
        "rocpd_info_pmc", nid=1, pid=28, agent_id=2, name="SQ_WAVES", symbol="SQ_WAVES"
    )
    event = file.dispatch("gemm", 1, 10, 20)
    for value in (3.0, 4.5):
        file.insert("rocpd_pmc_event", event_id=event, pmc_id=waves, value=value)
    file.insert("rocpd_pmc_event", event_id=9999, pmc_id=waves, value=1.0)

    trace = read(file.save())

    expected = """
        device_id name     time_ns value op_id
        0         SQ_WAVES 20      7.5   0
    """
    assert_frame_equal(
        trace.table("counters"), frame("counters", expected), categorical_as_str=True
    )
    assert counts(trace)["rocpd.counters-unplaced"] == 1


def test_a_monitor_sample_is_dated_by_its_timestamp(tmp_path):
    file = small_file(tmp_path / "a.db")
    busy = file.insert(
        "rocpd_info_pmc", nid=1, pid=28, agent_id=2, name="device_busy_gfx", symbol="busy"
    )
    event = file.event("amd_smi", 0)
    track = file.insert("rocpd_track", nid=1, pid=28, tid=28, name_id=file.string("GPU 0 busy"))
    file.insert("rocpd_sample", track_id=track, timestamp=123, event_id=event)
    file.insert("rocpd_pmc_event", event_id=event, pmc_id=busy, value=87.0)

    trace = read(file.save())

    assert trace.table("counters").drop("name").rows() == [(0, 123, 87.0, None)]
    assert trace.table("ranges").is_empty()


def test_tables_longer_than_one_slice_keep_their_order(tmp_path):
    file = small_file(tmp_path / "a.db")
    rows = 600_000
    series = f"WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k WHERE i < {rows})"
    category, name = file.string("HIP_RUNTIME_API_EXT"), file.string("hipLaunchKernel")
    kernel = file.kernel("gemm")
    for table, columns, values in (
        ("rocpd_event", "category_id, stack_id", f"{category}, 7 + i % {rows / 2}"),
        (
            "rocpd_region",
            "nid, pid, tid, start, end, name_id, event_id",
            f"1, 28, 28, i, i + 1, {name}, i",
        ),
        (
            "rocpd_kernel_dispatch",
            "nid, pid, agent_id, kernel_id, dispatch_id, queue_id, stream_id, start, end, event_id",
            f"1, 28, 2, {kernel}, i, 16, 0, i * 10, i * 10 + 5, {rows} / 2 + i",
        ),
    ):
        limit = "" if table == "rocpd_event" else f" WHERE i <= {rows} / 2"
        file.connection.execute(
            f"{series} INSERT INTO {table}{file.suffix} ({columns}) SELECT {values} FROM k{limit}"
        )

    trace = read(file.save())

    half = rows // 2
    assert trace.table("calls")["start_ns"].to_list() == list(range(1, half + 1))
    assert trace.table("ops")["start_ns"].to_list() == list(range(10, rows * 5 + 10, 10))
    # Dispatch i has event half + i, whose stack is that of event i, and so of call i - 1.
    assert trace.table("ops")["call_id"].to_list() == list(range(half))


def test_progress_counts_up_to_the_rows_of_the_file(tmp_path):
    file = small_file(tmp_path / "a.db")
    file.call("hipLaunchKernel", 1, 10, 20, stream="0")
    file.dispatch("gemm", 1, 30, 40)
    path = file.save()
    seen = []

    FORMAT.read(path, lambda done, total, what: seen.append((done, total, what)))

    rows = sum(
        sqlite3.connect(path).execute(f"SELECT count(*) FROM {name}").fetchone()[0]
        for name in ("rocpd_event", "rocpd_region", "rocpd_kernel_dispatch", "rocpd_arg")
    )
    assert seen[-1] == (rows, rows, "rows of a.db")
    assert seen == sorted(seen)
