"""What a program says through a marked device comes back in tables, from its file and from a run."""

import shutil
import sqlite3

import polars as pl
import pytest
from virtual_runs import device_of

from instrumented_runtime.devices import Kernel
from instrumented_runtime.marks import Marks
from instrumented_runtime.marks.marked_device import MarkedDevice
from instrumented_runtime.recorder import Recorder
from tracekit.formats import read_trace
from tracekit.formats.store import write_run


def program(virtual):
    """Two streams, one event, one graph; return the handles of the event and of both streams."""
    device = MarkedDevice(virtual, Marks(virtual))
    forward, side = device.stream("forward"), device.stream("side")
    null = virtual.null_stream
    done = device.event()
    staged = device.pinned([4], "int64", "staged")
    plan, result = (device.allocate([4], "int64", name) for name in ("plan", "result"))
    with device.capture(forward, "decode") as captured:
        device.launch(Kernel("attention", 5_000), forward, [plan], [result])
    (graph,) = captured
    with device.marks.step(1, kind="decode", waiting=2, free=1):
        device.copy_async(plan, staged, side)
        device.record(done, side)
        device.wait(done, forward)
        device.replay(graph, forward)
        device.launch(Kernel("sample", 1_000), forward, [result], [plan])
        device.launch(Kernel("cleared", 1_000), null, [], [result])
        device.record(done, forward)
        device.sync(done)
    return done.handle, {b.name: b.address for b in (staged, plan, result)}


ACCESSES = [
    ("copy", "staged", "read"),
    ("copy", "plan", "write"),
    ("graph_launch", "plan", "read"),
    ("graph_launch", "result", "write"),
    ("launch", "result", "read"),
    ("launch", "plan", "write"),
    ("launch", "result", "write"),
]
MARKS = [
    ("record", "side", "event_record"),
    ("wait", "forward", "event_wait"),
    ("record", "forward", "event_record"),
    ("sync", None, "event_sync"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The file of the program, one without the calls' arguments, and what the program knew."""
    folder = tmp_path_factory.mktemp("marked")
    with Recorder(folder, environment={"ROCPROF_KERNEL_TRACE": "1"}) as recorder:
        device = device_of(recorder)
        knew = program(device)
        device.synchronize()
        path = recorder.close()
    bare = folder / "bare.db"
    shutil.copy(path, bare)
    with sqlite3.connect(bare) as connection:
        found = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'rocpd_arg%'"
        for (table,) in connection.execute(found).fetchall():
            assert connection.execute(f'DELETE FROM "{table}"').rowcount > 0
    connection.close()
    return {"whole": path, "bare": bare, "knew": knew}


def stream_names(trace):
    """Return what ran on each stream, which tells the streams apart without any marker."""
    ops = trace.table("ops").with_columns(pl.col("name").cast(pl.String))
    by_name = dict(ops.select("name", "stream_id").rows())
    copied = ops.filter(kind="copy")["stream_id"].item()
    return {by_name["sample"]: "forward", copied: "side", by_name["cleared"]: "null"}


@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize("file", ["whole", "bare"])
def test_what_was_said_comes_back_at_the_calls_it_was_said_of(run, tmp_path, file, converted):
    event, addresses = run["knew"]
    trace = read_trace([run[file]])
    if converted:
        write_run(trace, tmp_path / "run", force=False)
        trace = read_trace([tmp_path / "run"])
    calls, streams = trace.table("calls"), stream_names(trace)
    kinds = dict(calls.select("call_id", pl.col("kind").cast(pl.String)).rows())

    accesses = trace.table("accesses")
    rows = accesses.select("call_id", "buffer", "mode").rows()
    assert [(kinds[call], buffer, mode) for call, buffer, mode in rows] == ACCESSES
    assert accesses["address"].to_list() == [addresses[buffer] for _, buffer, _ in ACCESSES]
    assert accesses["size_bytes"].to_list() == [32] * len(ACCESSES)

    marks = trace.table("marks")
    rows = marks.select("statement", "stream_id", "call_id").rows()
    assert [(said, streams.get(stream), kinds[call]) for said, stream, call in rows] == MARKS
    assert marks["event_key"].to_list() == [event] * len(MARKS)
    of_marks = calls.filter(pl.col("kind").cast(pl.String).str.starts_with("event_"))
    assert of_marks["event_key"].to_list() == [event] * len(MARKS)
    assert of_marks["stream_id"].to_list() == marks["stream_id"].to_list()

    rows = trace.table("streams").select("stream_id", "flags").rows()
    assert {streams[number]: flags for number, flags in rows} == {
        "forward": "nonblocking",
        "side": "nonblocking",
        "null": "null",
    }
    launch = calls.filter(kind="graph_launch")["stream_id"].item()
    assert streams[launch] == "forward"
    assert trace.table("copies")["is_pinned"].to_list() == [True]
    codes = {note.code for note in trace.notes}
    assert not any(code.startswith("markers.") for code in codes)
    assert "rocpd.stream-flags-unknown" not in codes
