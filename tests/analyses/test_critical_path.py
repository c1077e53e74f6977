"""critical-path on tables written by hand, on the engine and on a real trace."""

import polars as pl
import pytest

from instrumented_runtime.config import EngineConfig
from instrumented_runtime.costs import Costs
from instrumented_runtime.devices.virtual import Config, VirtualDevice
from instrumented_runtime.engine import Engine
from instrumented_runtime.marks import Marks
from instrumented_runtime.recorder import Recorder
from instrumented_runtime.request import Request
from tracekit.analyses.critical_path import (
    ANALYSIS,
    CRITICAL_PATH,
    caveats,
    critical_path,
    step_paths,
)
from tracekit.formats import read_trace
from tracekit.pipeline import analyse
from tracekit.tables.catalog import TABLES
from tracekit.tables.identity import WINDOWS

PREPARE_NS = Costs().host_ns["prepare"]
HEADER = "step_kind segment name steps steps_with total_ns path_share step_median_ns"

# A host that waits for its own work before it prepares the next: op a of the step before releases
# the sync at 100, the host comes back at 110, prepares, and launches b, c; d waits for c.
RANGES = """
range_id kind   process_id thread_id text                       start_ns end_ns
0        marker 0          7         tk1~step~1~kind=verify     50       300
1        marker 0          7         prepare                    120      190
"""
CALLS = """
call_id process_id thread_id name                 kind        start_ns end_ns stream_id
0       0          7         hipLaunchKernel      launch      0        10     1
1       0          7         hipStreamSynchronize stream_sync 60       110    1
2       0          7         hipLaunchKernel      launch      190      200    1
3       0          7         hipLaunchKernel      launch      200      210    1
4       0          7         hipStreamWaitEvent   event_wait  210      215    2
5       0          7         hipLaunchKernel      launch      215      220    2
"""
OPS = """
op_id kind   name process_id device_id stream_id start_ns end_ns call_id
0     kernel a    0          0         1         20       100    0
1     kernel b    0          0         1         204      260    2
2     kernel c    0          0         1         261      300    3
3     kernel d    0          0         2         302      350    5
"""
WAITS = """
wait_id process_id waiting_stream_id recording_stream_id wait_call_id pending_start_ns pending_end_ns evidence
0       0          2                 1                   4            215              300            recorded
"""


def test_a_path_goes_over_a_wait_the_stream_the_launch_the_host_and_the_work_it_had_waited_for(
    run, check
):
    found = run(critical_path, ranges=RANGES, calls=CALLS, ops=OPS, waits=WAITS)
    # d 302-350, hand-over, c 261-300, dispatch, b 204-260, latency of the launch that ended at 200,
    # the launch itself and the step's range, prepare 120-190, the sync 100-110, a from 50.
    check(
        found,
        CRITICAL_PATH,
        f"""
        {HEADER}
        verify host-range     prepare              1 1 70 {70 / 300} 70
        verify kernel         b                    1 1 56 {56 / 300} 56
        verify kernel         a                    1 1 50 {50 / 300} 50
        verify kernel         d                    1 1 48 {48 / 300} 48
        verify kernel         c                    1 1 39 {39 / 300} 39
        verify host-range     tk1~step~*~kind=verify 1 1 20 {20 / 300} 20
        verify blocking-call  hipStreamSynchronize 1 1 10 {10 / 300} 10
        verify launch-latency hipLaunchKernel      1 1 4  {4 / 300} 4
        verify hand-over      -                    1 1 2  {2 / 300} 2
        verify dispatch       -                    1 1 1  {1 / 300} 1
        """,
    )


def test_what_lies_behind_a_call_that_is_lost_is_unknown(run):
    # The sync is not there: of three numbers that are missing, two are those of the markers.
    calls = """
    call_id process_id thread_id name               kind       start_ns end_ns stream_id correlation_id
    0       0          7         hipLaunchKernel    launch     0        10     1         10
    2       0          7         hipLaunchKernel    launch     190      200    1         14
    3       0          7         hipLaunchKernel    launch     200      210    1         15
    4       0          7         hipStreamWaitEvent event_wait 210      215    2         16
    5       0          7         hipLaunchKernel    launch     215      220    2         17
    """
    found = run(critical_path, ranges=RANGES, calls=calls, ops=OPS, waits=WAITS)
    said = dict(found.select(pl.col("segment").cast(pl.String), "total_ns").iter_rows())
    # It had returned by 190, when the launch of b began; the step began at 50.
    assert said["unknown"] == 140
    assert said["host-range"] == 10
    assert found["total_ns"].sum() == 300


def test_without_waits_the_path_stays_in_its_stream_and_names_no_kernel_of_another(run):
    # d was submitted at 220 and started at 302, and the path goes on before its launch.
    found = run(critical_path, ranges=RANGES, calls=CALLS, ops=OPS)
    kernels = found.filter(pl.col("segment") == "kernel")["name"].cast(pl.String).to_list()
    assert kernels == ["a", "d"]
    assert found["total_ns"].sum() == 300


def test_a_wait_of_which_nothing_is_known_leaves_the_time_in_which_its_work_may_have_ended_unknown(
    run,
):
    # Without the row of the wait its call remains; c ended between d's submission and its start.
    found = run(critical_path, ranges=RANGES, calls=CALLS, ops=OPS)
    unknown = found.filter(pl.col("segment") == "unknown")
    assert unknown["total_ns"].to_list() == [302 - 220]
    # A host that never asked for a wait cannot have one hidden.
    asked_for_none = "\n".join(line for line in CALLS.splitlines() if "event_wait" not in line)
    found = run(critical_path, ranges=RANGES, calls=asked_for_none, ops=OPS)
    latency = found.filter(pl.col("segment") == "launch-latency")
    assert latency["total_ns"].to_list() == [302 - 220]
    assert "unknown" not in found["segment"].to_list()


def test_a_start_too_long_after_all_that_is_known_is_unknown_and_not_dispatch(run, check):
    found = run(
        critical_path,
        ranges="""
            range_id kind   process_id thread_id text            start_ns end_ns
            0        marker 0          7         tk1~step~1~kind=a 0      50
            """,
        calls="""
            call_id process_id thread_id name            kind   start_ns end_ns stream_id
            0       0          7         hipLaunchKernel launch 0        10     1
            1       0          7         hipLaunchKernel launch 10       20     1
            """,
        ops="""
            op_id kind   name process_id device_id stream_id start_ns end_ns call_id
            0     kernel a    0          0         1         10       100    0
            1     kernel b    0          0         1         100101   100200 1
            """,
    )
    check(
        found,
        CRITICAL_PATH,
        f"""
        {HEADER}
        a unknown    -               1 1 100001 {100001 / 100200} 100001
        a kernel     b               1 1 99     {99 / 100200}     99
        a kernel     a               1 1 90     {90 / 100200}     90
        a host-range tk1~step~*~kind=a 1 1 10   {10 / 100200}     10
        """,
    )


def test_without_calls_a_path_is_the_order_of_the_stream_and_the_time_between_is_unknown(
    run, check
):
    found = run(
        critical_path,
        ranges="""
            range_id kind   process_id thread_id text             start_ns end_ns
            0        marker 0          7         tk1~step~1~kind=a 5       40
            """,
        ops="""
            op_id kind   name process_id device_id stream_id start_ns end_ns call_id
            0     kernel a    0          0         1         0        10     -
            1     kernel b    0          0         1         12       20     -
            2     kernel c    0          0         2         13       19     -
            """,
    )
    check(
        found,
        CRITICAL_PATH,
        f"""
        {HEADER}
        a kernel  b 1 1 8 {8 / 15} 8
        a kernel  a 1 1 5 {5 / 15} 5
        a unknown - 1 1 2 {2 / 15} 2
        """,
    )


@pytest.mark.parametrize(("host", "kinds"), [((50, 300), ["verify"]), ((51, 300), [])])
def test_only_steps_wholly_inside_the_window_count(run, host, kinds):
    found = run(critical_path, host=host, ranges=RANGES, calls=CALLS, ops=OPS, waits=WAITS)
    assert found["step_kind"].unique().to_list() == kinds


def test_a_process_without_steps_is_one_path_from_its_first_launch_in_the_window(run):
    found = run(critical_path, host=(80, None), calls=CALLS, ops=OPS, waits=WAITS)
    # As with steps, but a counts from 80 on, and there is no range to name the host's 90.
    assert found["step_kind"].unique().to_list() == ["whole trace"]
    assert found["total_ns"].sum() == 350 - 80
    assert dict(found.select("segment", "total_ns").rows())["host-other"] == 90


def test_a_median_counts_the_steps_that_have_nothing_of_the_sort(run):
    steps = "\n".join(
        f"{i} marker 0 7 tk1~step~{i}~kind=a {100 * i} {100 * i + 90}" for i in range(3)
    )
    calls = "\n".join(f"{i} 0 7 hipLaunchKernel launch {100 * i} {100 * i + 1} 1" for i in range(3))
    ops = "\n".join(
        f"{i} kernel {name} 0 0 1 {100 * i + 5} {100 * i + 5 + length} {i}"
        for i, (name, length) in enumerate([("x", 10), ("x", 30), ("y", 20)])
    )
    found = run(
        critical_path,
        ranges="range_id kind process_id thread_id text start_ns end_ns\n" + steps,
        calls="call_id process_id thread_id name kind start_ns end_ns stream_id\n" + calls,
        ops="op_id kind name process_id device_id stream_id start_ns end_ns call_id\n" + ops,
    )
    kernels = found.filter(pl.col("segment") == "kernel")
    # x took 10, 30 and 0; y took 0, 0 and 20.
    assert kernels.select("name", "steps", "steps_with", "total_ns", "step_median_ns").rows() == [
        ("x", 3, 2, 40, 10.0),
        ("y", 3, 1, 20, 0.0),
    ]


def test_a_branch_of_a_graph_that_ends_last_is_what_the_join_waited_for(run):
    # Two branches on streams 1 and 8 of one launch on stream 1; j joins them, k follows the graph.
    found = run(
        critical_path,
        ranges="""
            range_id kind   process_id thread_id text             start_ns end_ns
            0        marker 0          7         tk1~step~1~kind=a 0       50
            """,
        calls="""
            call_id process_id thread_id name            kind         start_ns end_ns stream_id
            0       0          7         hipGraphLaunch  graph_launch 0        10     1
            1       0          7         hipLaunchKernel launch       10       20     1
            """,
        ops="""
            op_id kind   name  process_id device_id stream_id start_ns end_ns call_id graph_launch_id
            0     kernel root  0          0         1         15       20     0       0
            1     kernel short 0          0         1         21       30     0       0
            2     kernel long  0          0         8         22       60     0       0
            3     kernel j     0          0         8         62       70     0       0
            4     kernel k     0          0         1         73       80     1       -
            """,
    )
    total = dict(
        found.select(
            pl.coalesce(pl.col("name"), pl.col("segment").cast(pl.String)), "total_ns"
        ).rows()
    )
    # short still ran when long began, so it counts for that one nanosecond from 21 only.
    assert total == {
        "k": 7,
        "j": 8,
        "long": 38,
        "short": 1,
        "root": 5,
        "dispatch": 3 + 2 + 1,
        "hipGraphLaunch": 5,
        "tk1 step * kind=a": 10,
    }


def test_a_wait_for_a_graph_leads_to_its_last_op_though_that_ran_in_a_stream_of_its_own(run):
    found = run(
        critical_path,
        ranges="""
            range_id kind   process_id thread_id text              start_ns end_ns
            0        marker 0          7         tk1~step~1~kind=a 0        50
            """,
        calls="""
            call_id process_id thread_id name               kind         start_ns end_ns stream_id
            0       0          7         hipGraphLaunch     graph_launch 0        10     1
            1       0          7         hipStreamWaitEvent event_wait   10       12     2
            2       0          7         hipLaunchKernel    launch       12       20     2
            """,
        ops="""
            op_id kind   name process_id device_id stream_id start_ns end_ns call_id graph_launch_id
            0     kernel last 0          0         8         10       60     0       0
            1     kernel m    0          0         2         64       80     2       -
            """,
        waits="""
            wait_id process_id waiting_stream_id recording_stream_id wait_call_id pending_start_ns pending_end_ns evidence
            0       0          2                 1                   1            12               60             recorded
            """,
    )
    assert found.select("segment", "name", "total_ns").rows() == [
        ("kernel", "last", 50),
        ("kernel", "m", 16),
        ("host-range", "tk1 step * kind=a", 10),
        ("hand-over", None, 4),
    ]


def recorded(folder, policy):
    config = Config(tensors=False, host_costs_ns=Costs().host_ns)
    with Recorder(folder, environment=config.environment()) as recorder:
        device = VirtualDevice(config, recorder)
        options = EngineConfig(policy=policy, max_running=2, has_tensors=False)
        engine = Engine(device, options, marks=Marks(device))
        engine.run([Request(1, (3, 1, 4, 1, 5), 100), Request(2, (2, 7, 1, 8), 100)])
    return folder / "virtual_1.db"


@pytest.mark.parametrize("policy", ["host-sync", "forward-stream"])
def test_what_the_host_prepares_is_on_the_path_only_if_the_device_waits_for_it(tmp_path, policy):
    trace = read_trace([recorded(tmp_path, policy)])
    tables = ("ranges", "ops", "calls", "copies", "waits", "marks")
    windows = pl.DataFrame([(None, None, None)], WINDOWS.schema, orient="row")
    paths, segments = step_paths(*map(trace.table, tables), windows)
    length = pl.col("end_ns") - pl.col("start_ns")
    verify = paths.with_row_index("path").filter(pl.col("step_kind") == "verify")["path"]
    prepared = (
        segments.filter(pl.col("name") == "prepare", pl.col("path").is_in(verify.implode()))
        .group_by("path")
        .agg(length.sum().alias("ns"))
    )
    if policy == "forward-stream":
        assert prepared.is_empty()
    else:
        # All that is planted, and the launches within the range.
        assert prepared.height == verify.len() > 20
        assert prepared["ns"].min() >= PREPARE_NS
        assert prepared["ns"].max() < 1.05 * PREPARE_NS
    (section,) = analyse(trace, only=["critical-path"]).sections
    assert section.frame.filter(pl.col("segment") == "unknown").is_empty()
    whole = (paths["path_end_ns"] - paths["start_ns"]).sum()
    assert section.frame["total_ns"].sum() == segments.select(length.sum()).item() == whole


def test_a_real_trace_without_steps_is_one_path_that_adds_up(real_traces):
    trace = read_trace([real_traces / "kineto" / "a100_alexnet_cuda_sync.json.gz"])
    (section,) = analyse(trace, only=["critical-path"]).sections
    (kind,) = section.frame["step_kind"].unique()
    assert kind == "whole trace"
    ops, calls = trace.table("ops"), trace.table("calls")
    first = min(calls.join(ops, on="call_id", how="semi")["start_ns"].min(), ops["start_ns"].min())
    assert section.frame["total_ns"].sum() == ops["end_ns"].max() - first
    # Twelve seconds of it are the first call of each function: nothing else is on that path.
    shares = section.frame.group_by("segment").agg(pl.col("path_share").sum())
    assert dict(shares.rows())["host-range"] > 0.99


def test_the_kind_of_step_with_the_most_time_comes_first(run):
    found = run(
        critical_path,
        ranges="""
            range_id kind   process_id thread_id text              start_ns end_ns
            0        marker 0          7         tk1~step~1~kind=a 0        100
            1        marker 0          7         tk1~step~2~kind=b 200      700
            """,
        calls="""
            call_id process_id thread_id name            kind   start_ns end_ns
            0       0          7         hipLaunchKernel launch 0        10
            1       0          7         hipLaunchKernel launch 200      210
            """,
        ops="""
            op_id kind   name process_id device_id stream_id start_ns end_ns call_id
            0     kernel k    0          0         1         10       100    0
            1     kernel k    0          0         1         210      700    1
            """,
    )
    assert found.select("step_kind", "total_ns").rows() == [
        ("b", 490),
        ("b", 10),
        ("a", 90),
        ("a", 10),
    ]


def test_what_the_host_does_after_the_last_op_of_a_step_is_on_no_path_and_that_is_said(run, table):
    # One kernel, launched at 0 and done at 100, of a step that goes on until 1000.
    tables = {
        "ranges": """
            range_id kind   process_id thread_id text              start_ns end_ns
            0        marker 0          7         tk1~step~1~kind=a 0        1000
            """,
        "calls": """
            call_id process_id thread_id name            kind   start_ns end_ns
            0       0          7         hipLaunchKernel launch 0        10
            """,
        "ops": """
            op_id kind   name process_id device_id stream_id start_ns end_ns call_id
            0     kernel a    0          0         1         10       100    0
            """,
    }
    found = run(critical_path, **tables)
    assert found["total_ns"].sum() == 100
    frames = {name: table(name, rows) for name, rows in tables.items()}
    everything = pl.DataFrame([(None, None, None)], WINDOWS.schema, orient="row")
    (note,) = caveats(**frames, waits=TABLES["waits"].empty(), windows=everything, result=found)
    assert note.code == "critical-path.host-after"
    assert "of 1 µs of steps (a) at least 900 ns came after that" in note.message


def test_caveats_say_where_the_evidence_ends(frame):
    nothing = {name: TABLES[name].empty() for name in ("ranges", "ops", "calls", "waits")}
    nothing |= {"windows": WINDOWS.empty(), "result": CRITICAL_PATH.empty()}
    assert [note.code for note in caveats(**nothing)] == ["critical-path.no-steps"]
    marked = frame(
        "ranges",
        """
        range_id kind   process_id thread_id text          start_ns end_ns
        0        marker 0          7         ProfilerStep#1 0       50
        """,
    )
    lanes = frame(
        "ops",
        """
        op_id process_id device_id stream_id start_ns end_ns
        0     0          0         1         0        1
        1     0          0         2         0        1
        """,
    )
    found = caveats(**nothing | {"ranges": marked, "ops": lanes})
    assert [note.code for note in found] == ["critical-path.no-calls", "critical-path.no-waits"]
    assert ANALYSIS.caveats is caveats
