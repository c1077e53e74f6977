"""Two runs side by side: figures worked out by hand, and nothing that sounds like a verdict."""

import json
import subprocess
import sys

import msgspec
import polars as pl
import pytest

from tracekit.analyses import analyses
from tracekit.compare import COMPARISON, ONE_A_SIDE, Side, changes, compared, warnings
from tracekit.compare.trace_figures import ANALYSES, trace_figures
from tracekit.formats.store import write_run
from tracekit.manifest.what_ran import Gpu, WhatRan
from tracekit.trace import Trace


def frame(analysis, **columns):
    return analyses()[analysis].table.conform(pl.DataFrame(columns))


# Device 0 was busy 60 % of its time; of the rest the host held 0.3, the end of the window 0.1.
FRAMES = {
    "queue-busy": frame(
        "queue-busy", device_id=[0, 0], lane_kind=["device", "stream"], busy_share=[0.6, 0.5]
    ),
    "idle-gaps": frame(
        "idle-gaps",
        device_id=[0, 0, 0],
        cause=["host-blocked", "edge", "host-blocked"],
        idle_ns=[2000, 1000, 1000],
        idle_share=[0.2, 0.1, 0.1],
    ),
    # Three steps; the first used both devices and has a row for each.
    "steps": frame(
        "steps",
        process_id=[0, 0, 0, 0],
        device_id=[0, 1, 0, 0],
        found_by=["tk1-step"] * 4,
        kind=["verify"] * 3 + ["prefill"],
        start_ns=[0, 0, 100, 200],
        wall_ns=[100, 100, 140, 900],
    ),
    "queue-waits": frame(
        "queue-waits",
        device_id=[0] * 4,
        scope=["device", "lane", "graph", "graph"],
        pending_ns=[50, 50, 40, 40],
        status=[None, None, "compared", "not identifiable"],
        added_ns=[None, None, 30.0, 7.0],
    ),
    "unordered-copies": frame(
        "unordered-copies",
        order=["unordered", "accident", "event", "unordered"],
        certainty=["certain", "certain", "certain", "possible"],
        copies=[5, 2, 9, 4],
    ),
}


def test_figures_of_a_trace_by_hand():
    found = {(figure.name, figure.place): figure.value for figure in trace_figures(FRAMES)}
    idle = {(f"idle, {cause}", "device 0") for cause in ("host-late", "launch-latency", "dispatch")}
    idle |= {(f"idle, {cause}", "device 0") for cause in ("queue-wait", "unknown")}
    assert {found.pop(key) for key in idle} == {0}
    assert found == {
        ("busy_share", "device 0"): 0.6,
        ("idle, host-blocked", "device 0"): pytest.approx(0.3),
        ("idle, edge", "device 0"): 0.1,
        ("idle, starved", "device 0"): 0,
        ("host_blocked_per_step_ns", "device 0"): 1000,
        ("host_blocked_per_step_ns", "device 1"): 0,
        ("steps", "verify steps"): 2,
        ("steps", "prefill steps"): 1,
        ("step_wall_median_ns", "verify steps"): 120,
        ("step_wall_median_ns", "prefill steps"): 900,
        ("waits_pending_ns", "device 0"): 50,
        ("waits_added_ns", "device 0"): 30,
        ("unordered_copies", "certain"): 7,
        ("unordered_copies", "possible"): 4,
    }
    assert set(FRAMES) == set(ANALYSES) <= set(analyses())


def test_a_trace_without_any_result_has_no_figures():
    assert trace_figures({}) == []
    empty = {name: analyses()[name].table.empty() for name in ANALYSES}
    # Analyses that ran and found nothing: no device, and no copy that is not ordered.
    assert [(figure.name, figure.value) for figure in trace_figures(empty)] == [
        ("unordered_copies", 0),
        ("unordered_copies", 0),
    ]


def rows(base, head):
    table = compared(base, head)
    assert table.schema == COMPARISON.schema
    return {
        (row["metric"], row["place"]): (row["base"], row["head"], row["change"], row["is_better"])
        for row in table.iter_rows(named=True)
    }


def test_changes_are_ratios_of_shares_differences_and_unknown_where_a_side_is():
    busier = FRAMES | {
        "queue-busy": frame("queue-busy", device_id=[0], lane_kind=["device"], busy_share=[0.75]),
        "queue-waits": FRAMES["queue-waits"].filter(pl.col("status").is_null()),
    }
    client = {
        "completed": 8,
        "cycle_ns": 10.0,
        "failed": 0,
        "clock": "virtual",
        "ttft_p50_ns": None,
    }
    base = Side("a", FRAMES, {"untraced": client, "traced": client | {"cycle_ns": 99.0}})
    head = Side("b", busier, {"untraced": client | {"cycle_ns": 9.0}})
    found = rows(base, head)
    # The phase that both have.
    assert found["cycle_ns", "untraced"] == (10, 9, pytest.approx(-0.1), "lower")
    assert found["completed", "untraced"] == (8, 8, 0, None)
    assert found["failed", "untraced"] == (0, 0, None, "lower")
    assert ("ttft_p50_ns", "untraced") not in found
    assert found["busy_share", "device 0"] == (0.6, 0.75, pytest.approx(0.15), None)
    assert found["waits_added_ns", "device 0"] == (30, None, None, "lower")


def record(**fields):
    given = {"run_id": "a", "tracekit": "1", "start_ns": 1, "folder": "/w", "command": ["serve"]}
    return WhatRan(**(given | fields))


def test_what_must_match_and_does_not_is_said_and_what_is_compared_is_named():
    base = Side("a", {}, {"traced": {"failed": 2, "failures": "2 × HTTP 503"}}, record())
    head = Side("b", {}, {"traced": {"failed": 0}}, record(command=["x"], gpus=[Gpu("MI300X")]))
    said = warnings(base, head)
    assert len(said) == 2
    assert said[0].startswith("gpus must match and does not")
    assert "a: 2 requests failed (2 × HTTP 503)" in said[1]
    assert changes(base, head) == ["command"]
    servers = [Side("", {}, {}, record(server={"policy": p, "model": "m"})) for p in "ab"]
    assert changes(*servers) == ["server (policy)"]
    assert "not recorded" in warnings(base, Side("c", {}))[0]


def test_a_load_that_was_stopped_is_said():
    sides = [
        Side(name, {}, {"untraced": {"failed": 0, "stopped": reason}}, record())
        for name, reason in (("a", None), ("b", "interrupted"))
    ]
    assert warnings(*sides) == ["b: the load was stopped before its end (interrupted)."]


def written(trace, directory, cycle_ns, commands):
    write_run(trace, directory, force=False)
    metrics = {"untraced": {"clock": "virtual", "cycle_ns": cycle_ns, "completed": 8}}
    (directory / "client.json").write_text(json.dumps(metrics))
    what_ran = record(command=commands, clock="virtual", outcome="complete")
    (directory / "capture.json").write_bytes(msgspec.json.encode(what_ran))


@pytest.fixture
def two_runs(tmp_path):
    ops = {"op_id": [0], "kind": ["kernel"], "name": ["k"], "process_id": [0], "device_id": [0]}
    for name, end_ns, cycle_ns in (("base", 100, 10.0), ("head", 50, 9.5)):
        frames = {
            "processes": pl.DataFrame({"process_id": [0], "pid": [1]}),
            "devices": pl.DataFrame({"device_id": [0], "name": ["MI300X"]}),
            "ops": pl.DataFrame(ops | {"start_ns": [0], "end_ns": [end_ns]}),
        }
        trace = Trace.from_frames(frames, notes=[], sources=["t"], format_name="kineto")
        written(trace, tmp_path / name, cycle_ns, ["serve", name])
    return tmp_path


def test_the_command_prints_rows_and_says_that_it_decides_nothing(two_runs):
    command = [sys.executable, "-c", "import sys; from tracekit.cli import main; sys.exit(main())"]
    command += ["compare", "--base", two_runs / "base", "--head", two_runs / "head"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line.split() for line in run.stdout.splitlines()]
    assert ["cycle_ns", "10", "ns", "9.5", "ns", "-5.00", "%", "lower"] in lines
    assert ["They", "differ", "in", "command."] in lines
    assert ONE_A_SIDE in run.stdout
    assert not {"significant", "regression", "PASS", "FAIL"} & set(run.stdout.split())
    as_json = subprocess.run([*command, "--as", "json"], capture_output=True, check=True)
    document = json.loads(as_json.stdout)
    assert (document["n_base"], document["n_head"]) == (1, 1)
    assert next(row for row in document["rows"] if row["metric"] == "cycle_ns")["head"] == 9.5
