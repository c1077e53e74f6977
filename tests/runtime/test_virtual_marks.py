"""Markers of a program on the virtual device come out of its rocpd file as they were written."""

import polars as pl
from virtual_runs import START_NS, recorded

from instrumented_runtime.devices import Kernel
from instrumented_runtime.marks import Marks, parse


def test_markers_round_trip_through_rocpd(tmp_path):
    handles = {}

    def host(device):
        marks = Marks(device)
        stream, event = device.stream(name="forward"), device.event()
        plan = device.allocate([16], "int64", name="plan")
        handles.update(stream=stream.handle, event=event.handle, plan=plan.address)
        marks.stream(stream)
        marks.buffer(plan)
        with marks.step(7, kind="verify", batch_size=8, tokens=26):
            marks.use(plan, "r")
            device.launch(Kernel("a", 5_000), stream, reads=[plan])
            event.record(stream)
            marks.record(event, stream)
            marks.graph(3, reads=[plan])
            marks.replay(3)
            event.synchronize()
            marks.sync(event)
        marks.wait(event, stream)

    trace, _ = recorded(tmp_path, host)
    ranges = trace.table("ranges").sort("range_id")
    stream, event, plan = (f"{handles[name]:#x}" for name in ("stream", "event", "plan"))
    texts = [
        f"tk1 stream {stream} flags=nonblocking device=0 name=forward",
        f"tk1 buffer {plan} addr={plan} size=128 name=plan place=device",
        "tk1 step 7 kind=verify bs=8 tokens=26",
        f"tk1 use {plan} r",
        f"tk1 record {event} stream={stream}",
        f"tk1 graph 0x3 declares r:{plan}",
        "tk1 replay 0x3",
        f"tk1 sync {event}",
        f"tk1 wait {event} stream={stream}",
    ]
    assert sorted(ranges["text"]) == sorted(texts)
    assert [parse(text).verb for text in texts] == [text.split()[1] for text in texts]
    # Stream, event and memory take 30; the launch, the record and what the host waits for follow.
    (step,) = ranges.filter(pl.col("text").str.contains(" step ")).rows(named=True)
    assert (step["start_ns"] - START_NS, step["end_ns"] - START_NS) == (30, 1_040 + 5_100 + 500)
