"""The virtual device as the engine sees it: host calls, and the packets they make."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from instrumented_runtime.devices import (
    Buffer,
    Device,
    Kernel,
    Platform,
    Stream,
    StreamFlags,
)
from instrumented_runtime.devices.virtual.actions import kernel_action
from instrumented_runtime.devices.virtual.config import Config
from instrumented_runtime.devices.virtual.copies import Copy, copy_between
from instrumented_runtime.devices.virtual.graphs import Capture, Node, VirtualGraph, with_jitter
from instrumented_runtime.devices.virtual.host import Host
from instrumented_runtime.devices.virtual.memory import Memory, VirtualBuffer
from instrumented_runtime.devices.virtual.packets import COPY, KERNEL, Action, Queue
from instrumented_runtime.devices.virtual.recording import CALL, THREAD, THREADS, Recording
from instrumented_runtime.devices.virtual.streams import Streams, VirtualEvent, VirtualStream
from instrumented_runtime.devices.virtual.tally import Tally
from instrumented_runtime.recorder import Recorder
from instrumented_runtime.recorder.layout import API_NUMBERS

_FLAGS = {"blocking": 0, "nonblocking": 1}
_LAUNCH = API_NUMBERS["hipLaunchKernel"]


class VirtualDevice:
    """A model of one HIP device and the host thread that drives it.

    Attributes:
        config: What is modelled.
    """

    name = "virtual-gfx950"
    platform: Platform = "hip"

    def __init__(self, config: Config | None = None, recorder: Recorder | None = None) -> None:
        """Start an idle device.

        Args:
            config: What is modelled; the defaults if None.
            recorder: Where calls, ops and markers go; nowhere if None.
        """
        self.config = config = config or Config()
        self._host = Host(config, Recording(recorder))
        if recorder is not None:
            soon, finish = self._host.catch_up_soon, self._host.finish
            recorder.attach(config.as_options(), on_flush=soon, before_close=finish)
        self._streams = Streams(self._host)
        self._memory = Memory(config.tensors, self._host.catch_up)
        self._launch_ns = self._host.costs_ns["hipLaunchKernel"]

    @property
    def now_ns(self) -> int:
        return self._host.now_ns

    @property
    def tally(self) -> Tally:
        """Busy and idle time as the device itself counts them; complete after `synchronize`."""
        return self._host.simulation.tally

    @property
    def queue_busy_ns(self) -> dict[int, int]:
        """Busy time by hardware queue, as the device itself counts it."""
        return {queue.number: queue.busy_ns for queue in self._host.simulation.queues}

    def start_recording(self, recorder: Recorder) -> None:
        """Record what is called from now on; the device goes on when the recording has ended.

        Raises:
            RecorderError: It is recorded already, or the recorder has a device.
        """
        self._host.start_recording(recorder)

    def stop_recording(self) -> None:
        """End that recording; `Recorder.close` then makes its database, on any thread."""
        self._host.stop_recording()

    def idle_until(self, time_ns: int) -> None:
        """Let the host do nothing until a moment, unless it has passed."""
        self._host.idle_until(time_ns)

    @property
    def null_stream(self) -> VirtualStream:
        return self._streams.null

    def stream(
        self, *, flags: StreamFlags = "nonblocking", priority: int = 0, name: str = ""
    ) -> VirtualStream:
        if flags == "null":
            return self.null_stream
        if flags not in _FLAGS:
            raise ValueError(f"flags: {flags!r} is not allowed; give {', '.join(_FLAGS)} or null")
        if type(priority) is not int:
            raise ValueError(f"priority: {priority!r} is not allowed; give a whole number")
        start = self._host.begin()
        stream = self._streams.add(flags, priority, name)
        arguments = (stream.handle, _FLAGS[flags], priority)
        self._host.end("hipStreamCreateWithPriority", start, *arguments)
        return stream

    def event(self) -> VirtualEvent:
        start = self._host.begin()
        event = VirtualEvent(self._streams, self._host.new_handle())
        self._host.end("hipEventCreateWithFlags", start, event.handle, 2)
        return event

    def launch(
        self,
        kernel: Kernel,
        stream: Stream,
        reads: Sequence[Buffer] = (),
        writes: Sequence[Buffer] = (),
    ) -> None:
        # The busiest call of all: nothing is called that a launch without tensors can do without.
        host, record, config = self._host, self._host.record, self.config
        on = stream if type(stream) is VirtualStream else self._streams.own(stream)
        if on.streams is not self._streams or host.lost is not None:
            self._streams.own(stream)
            host.begin()
        start = host.now_ns
        end = host.now_ns = start + self._launch_ns
        call = record.calls = record.calls + 1
        number = record.kernels.get(kernel)
        if number is None:
            number = record.kernel(kernel)
        action = None
        if config.tensors and kernel.function is not None:
            action = kernel_action(kernel, (*reads, *writes), self._memory, host)
        cost, sensitivity = kernel.cost_ns, kernel.sensitivity
        if on.branch is not None:
            on.branch.add(Node(cost, number, None, sensitivity, action))
        else:
            if config.kernel_jitter:
                factor = host.random.uniform(1 - config.kernel_jitter, 1 + config.kernel_jitter)
                cost = max(round(cost * factor), 1)
            queue = self._streams.ready(on) if on.is_ordered or on.queue is None else on.queue
            arrive = end + host.latency_ns
            queue.packets.append(
                (KERNEL, arrive, cost, call, on.number, number, action, sensitivity, None)
            )
            host.until_catch_up -= 1
            if host.until_catch_up <= 0:
                host.catch_up()
            if config.launch_blocking:
                host.wait_for(host.marker(queue))
                end = host.now_ns
        record.call(CALL(call, THREAD, _LAUNCH, start, end, number, 1, THREADS, 0, on.handle))

    def copy(self, destination: Buffer, source: Buffer, *, size_bytes: int | None = None) -> None:
        self._streams.refuse_capture("hipMemcpy")
        start = self._host.begin("hipMemcpy")
        copy = self._copy(destination, source, size_bytes)
        self._before_copy(copy)
        call = self._host.record.next_call()
        queue = self._submit(copy, self._streams.null, call, copy.action())
        # Neither HIP nor CUDA lets the host wait for a copy inside device memory.
        if not copy.is_inside_device or self.config.serialize_copy & 2:
            self._host.wait_for(self._host.marker(queue))
            self._streams.null_queue.used_ns = self._host.now_ns
        self._host.end("hipMemcpy", start, *copy.arguments, call=call)

    def copy_async(
        self,
        destination: Buffer,
        source: Buffer,
        stream: Stream,
        *,
        size_bytes: int | None = None,
    ) -> None:
        on = self._streams.own(stream)
        start = self._host.begin("hipMemcpyAsync")
        copy = self._copy(destination, source, size_bytes)
        call = self._host.record.next_call()
        if on.branch is not None:
            if copy.is_pageable:
                raise RuntimeError("hipMemcpyAsync: pageable memory cannot be captured; pin it")
            on.branch.add(Node(copy.cost_ns, -1, copy.row, 0.0, copy.action()))
        else:
            self._before_copy(copy)
            action = copy.staged_action() if source.place == "pageable" else copy.action()
            queue = self._submit(copy, on, call, action)
            if destination.place == "pageable" or self.config.serialize_copy & 2:
                self._host.wait_for(self._host.marker(queue))
        self._host.end("hipMemcpyAsync", start, *copy.arguments, on.handle, call=call)

    def _copy(self, to: Buffer, of: Buffer, size_bytes: int | None) -> Copy:
        own = self._memory.own
        return copy_between(own(to), own(of), size_bytes, self.config.timing)

    def _before_copy(self, copy: Copy) -> None:
        if self.config.serialize_copy & 1:
            self._host.wait_for_queues(self._host.simulation.queues)
        if copy.source.place == "pageable":
            # The host moves it to where the device can read it.
            self._host.now_ns += round(copy.row[3] / self.config.timing.staging_bytes_per_ns)

    def _submit(self, copy: Copy, stream: VirtualStream, call: int, action: Action | None) -> Queue:
        queue = self._streams.ready(stream)
        arrive, cost, number = self._host.arrival_ns, copy.cost_ns, stream.number
        queue.packets.append((COPY, arrive, cost, call, number, copy.row, action, 0.0, None))
        self._host.submitted(1)
        return queue

    @contextmanager
    def capture(self, stream: Stream, *, name: str = "") -> Iterator[VirtualGraph]:
        on = self._streams.own(stream)
        if on.flags == "null" or on.branch is not None:
            raise RuntimeError("capture: neither the null stream nor a stream twice")
        start = self._host.begin()
        self._host.end("hipStreamBeginCapture", start, on.handle, 0)
        graph = VirtualGraph(self._replay, self._host.new_handle(), name)
        capture = Capture(graph.content, on)
        on.branch = capture.origin
        try:
            yield graph
            start = self._host.begin()
            capture.finish()
            self._host.end("hipStreamEndCapture", start, on.handle, graph.handle)
            start = self._host.begin()
            self._host.end("hipGraphInstantiate", start, graph.handle)
        finally:
            capture.is_open = False
            for one in self._streams.all:
                if one.branch is not None and one.branch.capture is capture:
                    one.branch = None

    def _replay(self, graph: VirtualGraph, stream: Stream) -> None:
        """Launch a graph: its first branch on the stream's hardware queue, others beside it."""
        host, on, content = self._host, self._streams.own(stream), graph.content
        if on.branch is not None:
            raise RuntimeError("hipGraphLaunch: a graph within a capture is not modelled")
        if not content.is_complete:
            raise RuntimeError("hipGraphLaunch: the capture of this graph has not ended well")
        start = host.begin("hipGraphLaunch")
        call = host.record.next_call()
        queue = self._streams.ready(on)
        queues = self._streams.beside(on, content.num_branches)
        arrive = host.arrival_ns
        jitter = self.config.kernel_jitter
        for place, packet in content.packets(queues, arrive, call, on.number):
            place.packets.append(with_jitter(packet, host.generator, jitter) if jitter else packet)
        host.submitted(content.num_ops)
        if self.config.launch_blocking:
            host.wait_for(host.marker(queue))
        host.end("hipGraphLaunch", start, graph.handle, on.handle, call=call)

    def allocate(
        self, shape: Sequence[int], dtype: str, *, stream: Stream | None = None, name: str = ""
    ) -> VirtualBuffer:
        number = 0 if stream is None else self._streams.own(stream).number
        start = self._host.begin()
        buffer, is_new = self._memory.allocate(shape, dtype, number, name)
        if is_new:
            call = self._host.end("hipMalloc", start, buffer.address, buffer.size_bytes)
            place = (call, buffer.address, buffer.size_bytes, number)
            self._host.record.allocation(place, start, self._host.now_ns)
        return buffer

    def free(self, buffer: Buffer) -> None:
        self._memory.free(self._memory.own(buffer))

    def host_buffer(
        self, shape: Sequence[int], dtype: str, *, pinned: bool = False, name: str = ""
    ) -> VirtualBuffer:
        start = self._host.begin()
        buffer = self._memory.host(shape, dtype, "pinned" if pinned else "pageable", name)
        if pinned:
            self._host.end("hipHostMalloc", start, buffer.address, buffer.size_bytes, 0)
        return buffer

    def synchronize(self) -> None:
        self._streams.refuse_capture("hipDeviceSynchronize")
        start = self._host.begin("hipDeviceSynchronize")
        self._host.wait_for_queues(self._host.simulation.queues)
        self._host.end("hipDeviceSynchronize", start)

    def elapse(self, kind: str, count: int = 1) -> None:
        self._host.elapse(kind, count)

    def mark(self, text: str) -> None:
        self._host.record.mark(text, self.now_ns)

    def push(self, text: str) -> None:
        self._host.record.push(text, self.now_ns)

    def pop(self) -> None:
        self._host.record.pop(self.now_ns)


if TYPE_CHECKING:
    _DEVICE: type[Device] = VirtualDevice
