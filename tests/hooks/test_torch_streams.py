"""PyTorch's own Event and Stream classes under the hooks, with and without a GPU.

Without one only the C++ bases of those classes are replaced, by ones that keep handles; with one
nothing is, and the program is the same.
"""

import re

import pytest
from hooked import run_hooked
from runtime.real_gpu import gpu

from tracekit.formats import read_trace

PROGRAM = """
import sys
GPU = WITH_GPU
import torch
from in_server import own_report, turn_window

if not GPU:
    # What a build for CPUs lacks.
    import importlib
    numbers = iter(range(0x100, 0x1000, 0x10))

    class StreamBase:
        device_index = 0
        def __init__(self): self.cuda_stream = next(numbers)
        def synchronize(self): return None

    class EventBase:
        cuda_event = 0
        def record(self, stream): self.cuda_event = self.cuda_event or next(numbers)
        def wait(self, stream): return None
        def synchronize(self): return None

    torch._C._CudaStreamBase, torch._C._CudaEventBase = StreamBase, EventBase
    streams = importlib.reload(torch.cuda.streams)
    streams.Stream.__new__ = lambda cls: object.__new__(cls)
    streams.Event.__new__ = lambda cls: object.__new__(cls)
    torch.cuda.Stream, torch.cuda.Event = streams.Stream, streams.Event
    torch.cuda._set_stream_by_id = lambda **_: None
    streams.Stream.stream_id = streams.Stream.device_type = 0
    main = torch.cuda.Stream()
    torch.cuda.current_stream = lambda device=None: main
    torch.cuda.is_current_stream_capturing = lambda: False
    # As if this process had begun with them.
    del sys.modules["_tracekit_hooks"]
    import os, runpy
    os.environ["TRACEKIT_HOOKS"] = "torch_streams,torch_profiler"
    import _tracekit_path
    runpy.run_path(_tracekit_path.SITECUSTOMIZE)
    from _tracekit_hooks import streams as hook_streams
    hook_streams._flags_of = lambda: lambda handle, flags: setattr(flags._obj, "value", 1) or 0
else:
    torch.zeros(1, device="cuda")

early, first, second = (torch.cuda.Stream() for _ in range(3))
never, done = torch.cuda.Event(), torch.cuda.Event()
torch.cuda.set_stream(early)
turn_window()
first.wait_event(never)         # never recorded: nothing to wait for
done.record(first)
second.wait_event(done)
done.synchronize()
second.wait_stream(first)       # records an event of its own
event = first.record_event()
event.wait()                    # of the current stream
turn_window()
done.record(second)
current = torch.cuda.current_stream()
names = {s.cuda_stream: n for n, s in
         dict(current=current, early=early, first=first, second=second).items()}
print({hex(handle): name for handle, name in names.items()}, hex(done.cuda_event))
# Copies are left alone unless asked for.
assert not hasattr(torch.Tensor.copy_, "__wrapped__")
"""


def said(ran):
    """Return what the trace's markers say, handles as the program's names of them."""
    streams, done = ran.output.rsplit(" ", 1)
    names = {handle: f"<{name}>" for handle, name in eval(streams).items()} | {done.strip(): "done"}
    ranges = read_trace(ran.traces).table("ranges").sort("start_ns")
    texts = [text for text in ranges["text"] if text.startswith("tk1")]
    return [
        re.sub("0x[0-9a-f]+", lambda found: names.get(found[0], "other"), text[4:])
        for text in texts
    ]


EXPECTED = [
    "record done stream=<first>",
    "wait done stream=<second>",
    "sync done",
    "record other stream=<first>",
    "wait other stream=<second>",
    "record other stream=<first>",
]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    def run(*, with_gpu):
        folder = tmp_path_factory.mktemp("streams")
        from hooked import HOOKS

        path = HOOKS / "path" / "sitecustomize.py"
        (folder / "_tracekit_path.py").write_text(f"SITECUSTOMIZE = {str(path)!r}\n")
        ran = run_hooked(
            PROGRAM.replace("WITH_GPU", str(with_gpu)),
            folder,
            hooks="torch_streams,torch_profiler" if with_gpu else "nothing_yet",
            flags=("-W", "ignore"),
            paths=[folder],
            TRACEKIT_MARKERS="record_function",
            TRACEKIT_PROFILE_CPU="1",
        )
        assert ran.status == 0, ran.log
        return ran

    return run


def test_records_waits_and_syncs_are_said_in_order_with_the_runtime_s_handles(program):
    ran = program(with_gpu=False)
    assert ran.report["problems"] == []
    lines = said(ran)
    assert [line for line in lines if not line.startswith("stream")] == [
        *EXPECTED,
        "wait other stream=<current>",
    ]
    # The stream that became current before the window is declared with the first that is used.
    declared = [line.split(" ", 2)[1] for line in lines if line.startswith("stream")]
    assert declared == ["<early>", "<first>", "<second>", "<current>"]
    assert all("flags=nonblocking device=0" in line for line in lines if line.startswith("stream"))
    marks = read_trace(ran.traces).table("marks")
    assert marks["statement"].to_list() == ["record", "wait", "sync", *["record", "wait"] * 2]


@gpu
def test_on_a_gpu_each_is_at_the_runtime_s_own_call(program):
    ran = program(with_gpu=True)
    lines = said(ran)
    assert ran.report["problems"] == []
    assert [line for line in lines if not line.startswith("stream")] == [
        *EXPECTED,
        "wait other stream=<early>",
    ]
    trace = read_trace(ran.traces)
    marks = trace.table("marks").join(trace.table("calls"), on="call_id", how="left")
    kinds = marks.select("statement", "kind").rows()
    calls = {"record": "event_record", "wait": "event_wait", "sync": "event_sync"}
    assert [(statement, calls[statement]) for statement, _ in kinds] == kinds
    flags = [line.split("flags=")[1].split()[0] for line in lines if line.startswith("stream")]
    assert set(flags) == {"nonblocking"}
