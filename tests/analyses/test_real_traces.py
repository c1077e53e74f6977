"""Real traces, counted again with the standard library only: another path to the same figures."""

import gzip
import json
import sqlite3
from collections import defaultdict
from decimal import Decimal
from itertools import pairwise
from statistics import median

import polars as pl
import pytest

from tracekit.analyses import analyses, call_with_tables
from tracekit.formats import read_trace
from tracekit.tables.catalog import TABLES
from tracekit.tables.identity import WINDOWS

FILES = (
    "mi300x_qwen1.5-0.5b",
    "mi300x_sglang_qwen3-8b_decode_graph",
    "mi300x_resnet_fsdp_rank0of8",
    "a100_multistream_graphs_rank0of16",
)
GPU = {"kernel", "gpu_memcpy", "gpu_memset"}


def results(path):
    """The result of any analysis of one file, by name."""
    trace = read_trace([path])
    frames = {name: trace.table(name) for name in TABLES}
    work = frames["ops"].filter(pl.col("kind") != "barrier")
    spans = work.group_by("device_id").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    frames["windows"] = pl.DataFrame(
        [*spans.rows(), (None, None, None)], WINDOWS.schema, orient="row"
    )
    return lambda name: call_with_tables(analyses()[name].compute, frames)


def merged(intervals):
    """Disjoint intervals, by a loop with a running maximum."""
    islands = []
    for start, end in sorted(intervals):
        if islands and start <= islands[-1][1]:
            islands[-1][1] = max(islands[-1][1], end)
        elif end > start:
            islands.append([start, end])
    return islands


class Kineto:
    """What a Kineto file says, event by event."""

    def __init__(self, path):
        with gzip.open(path) as file:
            trace = json.load(file, parse_float=Decimal)
        base_ns = int(trace.get("baseTimeNanoseconds", 0))
        self.ops, self.calls, self.steps = [], [], []
        for event in trace["traceEvents"]:
            if event.get("ph") != "X":
                continue
            start_ns = base_ns + int(event["ts"] * 1000)
            args = event.get("args", {})
            found = (
                event["name"],
                start_ns,
                start_ns + int(event["dur"] * 1000),
                args.get("correlation"),
                args.get("stream"),
            )
            if event.get("cat") in GPU:
                self.ops.append(found)
            elif event.get("cat") in ("cuda_runtime", "cuda_driver"):
                self.calls.append(found)
            elif event["name"].startswith("ProfilerStep#") and event.get("cat") in (
                "user_annotation",
                "cpu_op",
            ):
                self.steps.append(found[:3])

    @property
    def islands(self):
        return merged((start, end) for _, start, end, _, _ in self.ops)


@pytest.fixture(params=FILES, scope="module")
def pair(request, real_traces):
    path = real_traces / "kineto" / f"{request.param}.json.gz"
    if not path.is_file():
        pytest.skip(f"no {path.name}")
    return Kineto(path), results(path)


def totals(rows):
    sums = defaultdict(lambda: [0, 0])
    for name, start, end, *_ in rows:
        sums[name][0] += 1
        sums[name][1] += end - start
    return {name: tuple(found) for name, found in sums.items()}


def test_every_kernel_name_has_the_count_and_total_that_the_file_has(pair):
    file, result = pair
    found = result("kernels").group_by("name").agg(pl.col("ops").sum(), pl.col("total_ns").sum())
    assert {n: (ops, total) for n, ops, total in found.rows()} == totals(file.ops)


def test_every_call_name_has_the_count_and_total_that_the_file_has(pair):
    file, result = pair
    found = result("calls").select("name", "calls", "total_ns").rows()
    assert {name: (calls, total) for name, calls, total in found} == totals(file.calls)


def test_the_devices_busy_time_and_longest_idle_stretch_are_those_of_a_running_maximum(pair):
    file, result = pair
    device = result("queue-busy").filter(lane_kind="device").row(0, named=True)
    islands = file.islands
    idle = [after[0] - before[1] for before, after in pairwise(islands)]
    assert device["ops"] == len(file.ops)
    assert device["busy_ns"] == sum(end - start for start, end in islands)
    assert device["longest_idle_ns"] == max(idle)
    lanes = {stream for *_, stream in file.ops}
    by_lane = [merged((s, e) for _, s, e, _, at in file.ops if at == lane) for lane in lanes]
    busy = [sum(end - start for start, end in lane) for lane in by_lane]
    assert device["main_busy_ns"] == max(busy)
    assert device["side_busy_ns"] == sum(busy) - max(busy)


def test_launches_wait_as_long_as_correlations_say_and_the_rest_is_accounted_for(pair):
    file, result = pair
    launches = result("launches")
    first = {}
    for _, start, _, correlation, _ in file.ops:
        first[correlation] = min(start, first.get(correlation, start))
    waits = defaultdict(list)
    for name, _, end, correlation, _ in file.calls:
        if correlation in first:
            waits[name].append(first[correlation] - end)
    named = launches.filter(pl.col("name").is_not_null() & pl.col("queued_max_ns").is_not_null())
    assert {
        n: (m, x) for n, m, x in named.select("name", "queued_median_ns", "queued_max_ns").rows()
    } == {name: (median(found), max(found)) for name, found in waits.items()}
    called = {correlation for *_, correlation, _ in file.calls}
    lowest = min(called - {None})
    early = sum(c not in called and c < lowest for *_, c, _ in file.ops)
    assert launches.filter(reason="before-window")["ops"].sum() == early
    assert launches.filter(reason="no-call")["ops"].sum() == 0
    assert launches["ops"].sum() == len(file.ops)


def test_graph_launches_have_the_ops_that_share_their_correlation(pair):
    file, result = pair
    graphs = result("graphs")
    launched = {c for name, _, _, c, _ in file.calls if "GraphLaunch" in name}
    assert graphs["launches"].sum() == len(launched)
    assert graphs["ops"].sum() == sum(c in launched for *_, c, _ in file.ops)


def test_profiler_steps_have_the_busy_time_that_lies_inside_them(pair):
    file, result = pair
    steps = result("steps").filter(found_by="profiler-step")
    expected = {
        name: sum(max(0, min(end, e) - max(start, s)) for s, e in file.islands)
        for name, start, end in file.steps
    }
    assert dict(steps.select("label", "busy_ns").rows()) == expected


def test_a_rocpd_file_has_the_totals_that_sql_finds_in_it(real_traces):
    path = real_traces / "rocpd" / "mi300x_rocm7.1_hip_args_redacted.db"
    if not path.is_file():
        pytest.skip(f"no {path.name}")
    with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as database:
        spans = database.execute("SELECT start, end FROM rocpd_kernel_dispatch").fetchall()
        calls = database.execute(
            "SELECT s.string, count(*), sum(r.end - r.start) FROM rocpd_region r "
            "JOIN rocpd_string s ON s.id = r.name_id GROUP BY s.string"
        ).fetchall()
    database.close()
    result = results(path)
    device = result("queue-busy").filter(lane_kind="device").row(0, named=True)
    assert device["ops"] == len(spans)
    assert device["sum_ns"] == sum(end - start for start, end in spans)
    assert device["busy_ns"] == sum(end - start for start, end in merged(spans))
    found = result("calls").select("name", "calls", "total_ns").rows()
    assert sorted(found) == sorted(calls)
