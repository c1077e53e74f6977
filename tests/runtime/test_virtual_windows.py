"""Recordings that begin and end while a virtual device runs."""

import json
import sqlite3

import polars as pl
import pytest
from virtual_runs import device_of, times_of

from instrumented_runtime.devices import Kernel
from instrumented_runtime.recorder import Recorder, RecorderError
from tracekit.formats import read_trace, silent


def window(folder, device, host_code, pid=1):
    """Record `host_code(device)` on a device that runs; return the trace."""
    recorder = Recorder(folder, pid=pid, environment={"ROCPROF_KERNEL_TRACE": "1"})
    device.start_recording(recorder)
    host_code(device)
    device.stop_recording()
    return read_trace([recorder.close()], silent)


def rows_before(path):
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        (extdata,) = connection.execute("SELECT extdata FROM rocpd_info_process").fetchone()
    return json.loads(extdata)["rows_before_window"]


def test_what_was_launched_before_a_window_is_not_in_it_but_was_there(tmp_path):
    device = device_of()
    stream = device.stream()
    device.push("open since before")
    device.launch(Kernel("before", 5_000), stream)

    def work(device):
        device.launch(Kernel("within", 100), stream)
        device.pop()
        device.synchronize()

    trace = window(tmp_path, device, work)
    # The stream takes 10 ns, each launch 10, the way to the queue 1000, a dispatch 100: `before`
    # runs from 1120 to 6120.
    assert times_of(trace).rows() == [("within", 1, 6_220, 6_320)]
    assert trace.table("ranges").is_empty()
    # Its kernel and the range.
    assert rows_before(tmp_path / "virtual_1.db") == 2


def test_what_still_runs_when_a_window_ends_is_not_in_it_nor_in_the_next(tmp_path):
    device = device_of()
    stream = device.stream()
    first = window(tmp_path, device, lambda device: device.launch(Kernel("long", 9_000), stream))
    assert first.table("ops").is_empty()
    assert first.table("calls").height == 1
    second = window(tmp_path, device, lambda device: device.synchronize(), pid=2)
    assert second.table("ops").is_empty()
    assert rows_before(tmp_path / "virtual_2.db") == 1
    assert device.tally.busy_ns == 9_000


def program(device):
    """Return three parts of work, of which each needs what the one before made."""
    stream, side, event = device.stream(), device.stream(flags="blocking"), device.event()
    there, here = device.allocate([64], "int64"), device.host_buffer([64], "int64", pinned=True)
    kernels = [Kernel(name, cost, sensitivity=0.3) for name, cost in (("a", 700), ("b", 400))]
    with device.capture(stream) as graph:
        for _ in range(5):
            device.launch(kernels[1], stream, writes=[there])
        device.copy_async(here, there, stream)

    def part(new):
        device.push(f"part {new}")
        for _ in range(3):
            graph.replay(stream)
            device.launch(kernels[0], side)
            event.record(side)
            event.wait(stream)
            device.launch(Kernel(new, 300), device.stream())
        device.mark("a moment")
        device.copy(there, here)
        device.pop()
        device.synchronize()

    return part


def shown(trace):
    """Return ops, calls and ranges without the numbers that each trace gives anew."""
    names = {"name": pl.col("name").cast(pl.String)}
    streams = trace.table("streams").select("stream_id", stream="name")
    ops = trace.table("ops").with_columns(**names).join(streams, on="stream_id", how="left")
    calls = trace.table("calls").with_columns(**names).join(streams, on="stream_id", how="left")
    launched = ops.join(calls, on="call_id", how="left").select("name_right", "start_ns_right")
    copies = trace.table("copies").join(calls, on="call_id")
    return {
        "ops": ops.select("name", "kind", "queue_id", "stream", "start_ns", "end_ns"),
        "launched": launched,
        "calls": calls.select("name", "start_ns", "end_ns", "stream"),
        "copies": copies.select("start_ns", "dst_address", "src_address", "copied_bytes"),
        "ranges": trace.table("ranges").select("text", "start_ns", "end_ns"),
    }


def test_a_window_shows_what_a_recording_of_everything_shows_of_that_time(tmp_path):
    device = device_of()
    part = program(device)
    part("x")
    begin_ns = device.now_ns
    trace = window(tmp_path, device, lambda _device: part("y"))
    end_ns = device.now_ns
    part("z")
    with Recorder(tmp_path / "all", environment={"ROCPROF_KERNEL_TRACE": "1"}) as recorder:
        whole = device_of(recorder)
        part = program(whole)
        for name in "xyz":
            part(name)
    assert whole.now_ns == device.now_ns
    everything = shown(read_trace([tmp_path / "all" / "virtual_1.db"], silent))
    for table, frame in shown(trace).items():
        expected = everything[table]
        start = next(name for name in expected.columns if name.startswith("start_ns"))
        expected = expected.filter(pl.col(start).is_between(begin_ns, end_ns, closed="left"))
        assert frame.height > 0
        assert frame.sort(pl.all()).equals(expected.sort(pl.all())), table


def test_a_device_is_recorded_once_at_a_time(tmp_path):
    device = device_of()
    first = Recorder(tmp_path / "a", environment={})
    device.start_recording(first)
    with Recorder(tmp_path / "b", environment={}) as second:
        with pytest.raises(RecorderError, match="recorded already"):
            device.start_recording(second)
        device.launch(Kernel("k", 100), device.null_stream)
        device.synchronize()
        device.stop_recording()
        device.start_recording(second)
        # What completes the first meanwhile ends nobody else's.
        trace = read_trace([first.close()], silent)
        assert trace.table("ops").height == 1
        device.launch(Kernel("k", 100), device.null_stream)
        device.synchronize()
    assert read_trace([tmp_path / "b" / "virtual_1.db"], silent).table("ops").height == 1
    # The device goes on.
    device.launch(Kernel("k", 100), device.null_stream)
    device.synchronize()
    assert device.tally.busy_ns == 300


def test_a_host_that_idles_goes_to_a_moment_and_never_back():
    device = device_of()
    now_ns = device.now_ns
    device.idle_until(now_ns + 5)
    device.idle_until(now_ns + 3)
    assert device.now_ns == now_ns + 5
