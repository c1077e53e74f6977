"""The device on a real GPU: order, memory and graphs as the interface promises them."""

import sys
import time

import pytest
from real_gpu import MISSING, gpu

from instrumented_runtime.devices import Kernel
from instrumented_runtime.devices.torch_device import TorchDevice
from instrumented_runtime.devices.torch_memory import TorchBuffer, copied_bytes, torch_dtype

without_gpu = pytest.mark.skipif(not MISSING, reason="there is a GPU")

DELAY = Kernel("delay", 40_000_000)
ONE = Kernel("one", 1_000, lambda target: target.fill_(1))
TWO = Kernel("two", 1_000, lambda target: target.fill_(2))
COPY = Kernel("copy", 1_000, lambda source, target: target.copy_(source))
ADD_ONE = Kernel("add one", 1_000, lambda target: target.add_(1))
SUM = Kernel("sum", 1_000, lambda a, b, target: target.copy_(a).add_(b))
READ_BACK = Kernel("read back", 1_000, lambda target: target.item())


@pytest.fixture
def device():
    device = TorchDevice()
    # A kernel's first launch loads it, for which the runtime may wait until the GPU is idle.
    a, b, c = (device.allocate((1,), "float32") for _ in range(3))
    for kernel, reads in ((ONE, []), (TWO, []), (COPY, [a]), (ADD_ONE, []), (SUM, [a, b])):
        device.launch(kernel, device.null_stream, reads, [c])
    device.launch(Kernel("spin", 1_000), device.null_stream)
    device.synchronize()
    return device


def number(device, name=""):
    buffer = device.allocate((1,), "float32", name=name)
    device.synchronize()
    return buffer


def values(device, buffer):
    """What device memory holds once the device is idle."""
    device.synchronize()
    host = device.host_buffer((buffer.size_bytes // 4,), "float32", pinned=True)
    device.copy(host, buffer)
    return host.on_host().tolist()


def one_after_a_delay(device, stream, target):
    device.launch(DELAY, stream)
    device.launch(ONE, stream, writes=[target])


@gpu
@pytest.mark.parametrize(("is_waited_for", "seen"), [(True, 1.0), (False, 0.0)])
def test_a_stream_that_waits_for_an_event_sees_what_was_written_before_it(
    device, is_waited_for, seen
):
    writer, reader, event = device.stream(), device.stream(), device.event()
    source, target = number(device), number(device)
    one_after_a_delay(device, writer, source)
    event.record(writer)
    if is_waited_for:
        event.wait(reader)
    device.copy_async(target, source, reader)
    assert values(device, target) == [seen]


@gpu
@pytest.mark.parametrize(("flags", "seen"), [("blocking", 1.0), ("nonblocking", 0.0)])
def test_a_blocking_copy_waits_for_a_blocking_stream_and_for_no_other(device, flags, seen):
    stream, source = device.stream(flags=flags), number(device)
    host = device.host_buffer((1,), "float32", pinned=True)
    one_after_a_delay(device, stream, source)
    with device.torch.cuda.stream(device.stream().native):  # torch's current stream is no matter
        device.copy(host, source)
    assert host.on_host().tolist() == [seen]
    assert values(device, source) == [1.0]


@gpu
@pytest.mark.parametrize(("flags", "seen"), [("blocking", 1.0), ("nonblocking", 0.0)])
def test_the_null_stream_is_the_legacy_one(device, flags, seen):
    stream, source, target = device.stream(flags=flags), number(device), number(device)
    one_after_a_delay(device, stream, source)
    device.launch(COPY, device.null_stream, [source], [target])
    assert device.null_stream.handle == 0
    assert values(device, target) == [seen]


@gpu
@pytest.mark.parametrize(("pinned", "read"), [(True, 2.0), (False, 1.0)])
def test_an_asynchronous_copy_reads_pinned_memory_when_it_runs_and_other_at_once(
    device, pinned, read
):
    stream, target = device.stream(), number(device)
    host = device.host_buffer((1,), "float32", pinned=pinned)
    host.on_host().fill_(1)
    device.launch(DELAY, stream)
    device.copy_async(target, host, stream)
    host.on_host().fill_(2)
    assert values(device, target) == [read]


@gpu
@pytest.mark.parametrize(("pinned", "seen"), [(True, 0.0), (False, 1.0)])
def test_an_asynchronous_copy_returns_before_pinned_memory_is_written_and_after_other(
    device, pinned, seen
):
    stream, source = device.stream(), number(device)
    host = device.host_buffer((1,), "float32", pinned=pinned)
    one_after_a_delay(device, stream, source)
    device.copy_async(host, source, stream)
    assert host.on_host().item() == seen
    stream.synchronize()
    assert host.on_host().item() == 1.0


@gpu
@pytest.mark.parametrize("how", ["copy", "copy_async"])
def test_a_copy_of_some_bytes_leaves_the_rest(device, how):
    target = device.allocate((2, 2), "float32")
    host = device.host_buffer((4,), "float32")
    host.on_host()[:] = host.on_host().new_tensor([1, 2, 3, 4])
    device.synchronize()
    stream = [device.stream()] if how == "copy_async" else []
    getattr(device, how)(target, host, *stream, size_bytes=8)
    assert values(device, target) == [1.0, 2.0, 0.0, 0.0]


@gpu
def test_freed_memory_returns_to_its_own_stream_at_once_and_holds_what_it_held(device):
    mine, other = device.stream(), device.stream()
    first = device.allocate((1 << 20,), "float32", stream=mine)
    device.launch(ONE, mine, writes=[first])
    device.free(first)
    elsewhere = device.allocate((1 << 20,), "float32", stream=other)
    again = device.allocate((1 << 20,), "float32", stream=mine)
    assert again.address == first.address
    assert elsewhere.address != first.address
    assert set(values(device, again)) == {1.0}
    assert set(values(device, elsewhere)) == {0.0}


@gpu
def test_freed_memory_is_reused_in_stream_order(device):
    stream, seen = device.stream(), number(device)
    first = device.allocate((1,), "float32", stream=stream)
    one_after_a_delay(device, stream, first)
    device.launch(COPY, stream, [first], [seen])
    device.free(first)
    again = device.allocate((1,), "float32", stream=stream)
    device.launch(TWO, stream, writes=[again])
    assert again.address == first.address
    assert values(device, seen) == [1.0]
    assert values(device, again) == [2.0]


@gpu
def test_memory_that_the_device_hands_out_for_the_first_time_is_zeroed(device):
    stream = device.stream()
    with device.torch.cuda.stream(stream.native):
        address = device.torch.full((1 << 20,), 7.0, device="cuda").data_ptr()
    buffer = device.allocate((1 << 20,), "float32", stream=stream)
    assert buffer.address == address
    assert set(values(device, buffer)) == {0.0}


@gpu
def test_a_captured_fork_and_join_replays_on_any_stream(device):
    main, side, other = device.stream(), device.stream(), device.stream()
    fork, join = device.event(), device.event()
    x, y, total = number(device), number(device), number(device)
    with device.capture(main) as graph:
        device.launch(DELAY, main)
        device.launch(ADD_ONE, main, writes=[x])
        fork.record(main)
        fork.wait(side)
        device.launch(DELAY, side)
        device.launch(COPY, side, [x], [y])
        join.record(side)
        join.wait(main)
        device.launch(SUM, main, [x, y], [total])
    assert values(device, x) == [0.0]
    graph.replay(main)
    assert values(device, total) == [2.0]
    graph.replay(other)
    graph.replay(other)
    replayed = device.event()
    replayed.record(other)
    assert not replayed.query()
    assert values(device, total) == [6.0]


@gpu
def test_a_captured_copy_reads_pinned_memory_at_each_replay(device):
    stream, target = device.stream(), number(device)
    host = device.host_buffer((1,), "float32", pinned=True)
    with device.capture(stream) as graph:
        device.copy_async(target, host, stream)
    for value in (5.0, 6.0):
        host.on_host().fill_(value)
        graph.replay(stream)
        assert values(device, target) == [value]


@gpu
def test_a_graph_keeps_the_buffers_it_uses_from_reuse(device):
    stream, target = device.stream(), number(device)
    source = device.allocate((1,), "float32", stream=stream)
    device.launch(ONE, stream, writes=[source])
    with device.capture(stream) as graph:
        device.launch(COPY, stream, [source], [target])
    address = source.address
    del source
    another = device.allocate((1,), "float32", stream=stream)
    device.launch(TWO, stream, writes=[another])
    graph.replay(stream)
    assert another.address != address
    assert values(device, target) == [1.0]


@gpu
def test_a_capture_refuses_what_it_cannot_hold_and_goes_on(device):
    stream, event, x = device.stream(), device.event(), number(device)
    pinned, pageable = (device.host_buffer((1,), "float32", pinned=yes) for yes in (True, False))
    event.record(stream)
    refused = [
        lambda: device.copy(pinned, x),
        lambda: device.copy_async(x, pageable, stream),
        device.synchronize,
        stream.synchronize,
        event.synchronize,
        event.query,
        device.capture(stream).__enter__,
    ]
    with device.capture(stream) as graph:
        for call in refused:
            with pytest.raises(RuntimeError, match="a capture cannot hold"):
                call()
        device.launch(ADD_ONE, stream, writes=[x])
    graph.replay(stream)
    assert values(device, x) == [1.0]


@gpu
@pytest.mark.parametrize("mistake", ["reads back", "leaves a fork open"])
def test_a_capture_that_fails_says_so_and_the_device_works_on(device, mistake):
    stream, side, fork, x = device.stream(), device.stream(), device.event(), number(device)
    with pytest.raises(RuntimeError, match=r"(?i)captur|unjoined"), device.capture(stream):
        fork.record(stream)
        fork.wait(side)
        device.launch(ADD_ONE, side, writes=[x])
        if mistake == "reads back":
            device.launch(READ_BACK, stream, writes=[x])
    device.launch(ADD_ONE, side, writes=[x])
    assert values(device, x) == [1.0]
    with device.capture(stream) as graph:
        device.launch(ADD_ONE, stream, writes=[x])
    graph.replay(stream)
    assert values(device, x) == [2.0]


@gpu
def test_the_null_stream_cannot_be_captured(device):
    with (
        pytest.raises(RuntimeError, match="null stream cannot be captured"),
        device.capture(device.null_stream),
    ):
        pass


@gpu
def test_an_event_is_done_before_its_first_record_and_when_its_last_one_is(device):
    stream, event = device.stream(), device.event()
    event.wait(stream)
    event.synchronize()
    assert event.query()
    device.launch(DELAY, stream)
    event.record(stream)
    assert event.handle != 0
    assert not event.query()
    event.synchronize()
    assert event.query()


@gpu
@pytest.mark.parametrize("is_device", [True, False])
def test_a_synchronise_waits_for_all_streams_of_the_device_or_for_one(device, is_device):
    streams, events = [device.stream() for _ in range(2)], [device.event() for _ in range(2)]
    for stream, event, kernel in zip(streams, events, (Kernel("short", 1_000), DELAY), strict=True):
        device.launch(kernel, stream)
        event.record(stream)
    (device if is_device else streams[0]).synchronize()
    assert [event.query() for event in events] == [True, is_device]


@gpu
def test_each_stream_is_its_own_with_the_flags_and_priority_it_was_asked_for(device):
    streams = [device.stream() for _ in range(40)]
    assert len({stream.handle for stream in streams} | {0}) == 41
    urgent = device.stream(flags="blocking", priority=-1, name="decode")
    assert (urgent.flags, urgent.priority, urgent.name) == ("blocking", -1, "decode")
    assert (streams[0].flags, streams[0].priority) == ("nonblocking", 0)
    assert device.stream(flags="null") is device.null_stream


@gpu
def test_a_kernel_without_a_function_spins_for_about_its_cost(device):
    stream = device.stream()
    launch_s, whole_s = [], []
    for _ in range(5):  # the least of them, for a GPU that others use too
        start = time.perf_counter()
        device.launch(DELAY, stream)
        launch_s.append(time.perf_counter() - start)
        stream.synchronize()
        whole_s.append(time.perf_counter() - start)
    assert min(launch_s) < 0.010
    assert min(whole_s) == pytest.approx(0.040, rel=0.5)


@gpu
def test_markers_go_to_the_marker_or_nowhere(device):
    class Log(list):
        def mark(self, text):
            self.append(f"mark {text}")

        def push(self, text):
            self.append(f"push {text}")

        def pop(self):
            self.append("pop")

    log = Log()
    for one in (TorchDevice(marker=log), device):
        one.push("step 1")
        one.mark("sync")
        one.pop()
    assert log == ["push step 1", "mark sync", "pop"]


@gpu
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(RuntimeError, match="no GPU 99: torch sees"):
        TorchDevice(99)


@without_gpu
def test_without_a_gpu_the_error_says_what_to_use():
    with pytest.raises(RuntimeError, match=r"torch .*: use a .* build .* or the virtual device"):
        TorchDevice()


def test_without_torch_the_error_says_what_to_use(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(RuntimeError, match=r"cannot be imported .* or the virtual device"):
        TorchDevice()


def test_buffers_refuse_what_would_be_wrong():
    torch = pytest.importorskip("torch")
    # Where a buffer says it is decides; the tensors can all be the host's.
    device, host = (
        TorchBuffer(torch.zeros(count), place, place)
        for count, place in ((4, "device"), (2, "pageable"))
    )
    with pytest.raises(ValueError, match="device is device memory: copy it to a host buffer"):
        device.on_host()
    with pytest.raises(ValueError, match="pageable is host memory: only device memory is freed"):
        host.drop()
    for size_bytes in (9, -1):
        with pytest.raises(ValueError, match=f"cannot copy {size_bytes} bytes from 'pageable'"):
            copied_bytes(torch, device, host, size_bytes)
    with pytest.raises(ValueError, match="both host memory"):
        copied_bytes(torch, host, host, None)
    with pytest.raises(ValueError, match="no dtype 'float8': it is one of bool"):
        torch_dtype(torch, "float8")
    assert [side.nbytes for side in copied_bytes(torch, device, host, None)] == [8, 8]
    device.drop()
    with pytest.raises(ValueError, match="device was freed"):
        device.drop()
    with pytest.raises(ValueError, match="device was freed"):
        copied_bytes(torch, device, host, None)
