"""A device whose every stream, buffer, launch, copy, record, wait and sync is marked."""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import count

from instrumented_runtime.devices import Buffer, Device, Event, Graph, Kernel, Stream
from instrumented_runtime.marks import Marks

# Of the process: what is declared of one number adds up.
_GRAPH_NUMBERS = count(1)


@dataclass(frozen=True, slots=True)
class MarkedGraph:
    """A captured graph and the number that markers know it by."""

    graph: Graph
    number: int


@dataclass(slots=True)
class _Captured:
    """Buffers a capture reads and writes, in the order of their first use."""

    reads: dict[int, Buffer] = field(default_factory=dict)
    writes: dict[int, Buffer] = field(default_factory=dict)


class MarkedDevice:
    """What the engine drives a device through, so that no call of it goes unmarked.

    Attributes:
        device: The device itself.
        marks: Where markers go.
        buffers: Device memory allocated through it and not freed.
        streams: Made through it.
    """

    def __init__(self, device: Device, marks: Marks) -> None:
        """Mark what goes to a device from now on."""
        self.device, self.marks = device, marks
        self.buffers: list[Buffer] = []
        self.streams: list[Stream] = []
        self._host_buffers: list[weakref.ref[Buffer]] = []
        self._graphs: dict[int, _Captured] = {}
        self._captured: _Captured | None = None

    def stream(self, name: str) -> Stream:
        stream = self.device.stream(name=name)
        self.streams.append(stream)
        self.marks.stream(stream)
        return stream

    def event(self) -> Event:
        return self.device.event()

    @property
    def is_capturing(self) -> bool:
        """Whether a capture is under way, of whatever streams."""
        return self._captured is not None

    def allocate(
        self, shape: Sequence[int], dtype: str, name: str, *, stream: Stream | None = None
    ) -> Buffer:
        buffer = self.device.allocate(shape, dtype, stream=stream, name=name)
        self.buffers.append(buffer)
        self.marks.buffer(buffer)
        return buffer

    def free(self, buffer: Buffer) -> None:
        self.buffers.remove(buffer)
        self.device.free(buffer)

    def pinned(self, shape: Sequence[int], dtype: str, name: str) -> Buffer:
        return self._marked(self.device.host_buffer(shape, dtype, pinned=True, name=name))

    def pageable(self, shape: Sequence[int], dtype: str, name: str) -> Buffer:
        return self._marked(self.device.host_buffer(shape, dtype, name=name))

    def _marked(self, buffer: Buffer) -> Buffer:
        # Host memory is nobody's to free: it goes when its last user does.
        self._host_buffers.append(weakref.ref(buffer))
        self.marks.buffer(buffer)
        return buffer

    def declare(self) -> None:
        """Mark all streams, buffers and graphs there are, for a recording that begins now."""
        for stream in self.streams:
            self.marks.stream(stream)
        self._host_buffers = [one for one in self._host_buffers if one() is not None]
        on_host = (one() for one in self._host_buffers)
        for buffer in (*self.buffers, *(one for one in on_host if one is not None)):
            self.marks.buffer(buffer)
        for number, captured in self._graphs.items():
            self._declare_graph(number, captured)

    def _declare_graph(self, number: int, captured: _Captured) -> None:
        self.marks.graph(number, reads=captured.reads.values(), writes=captured.writes.values())

    def launch(
        self,
        kernel: Kernel,
        stream: Stream,
        reads: Sequence[Buffer] = (),
        writes: Sequence[Buffer] = (),
    ) -> None:
        self._use(stream, reads, writes)
        self.device.launch(kernel, stream, reads, writes)

    def copy(self, destination: Buffer, source: Buffer) -> None:
        """Copy as `Device.copy`, on the null stream, which nothing non-blocking waits for."""
        self._use(self.device.null_stream, (source,), (destination,))
        self.device.copy(destination, source)

    def copy_async(self, destination: Buffer, source: Buffer, stream: Stream) -> None:
        self._use(stream, (source,), (destination,))
        self.device.copy_async(destination, source, stream)

    def record(self, event: Event, stream: Stream) -> None:
        event.record(stream)
        self.marks.record(event, stream)

    def wait(self, event: Event, stream: Stream) -> None:
        self.marks.wait(event, stream)
        event.wait(stream)

    def sync(self, event: Event) -> None:
        event.synchronize()
        self.marks.sync(event)

    def sync_stream(self, stream: Stream) -> None:
        """Block until a stream is done; the call says in the trace which, so it needs no marker."""
        stream.synchronize()

    @contextmanager
    def capture(self, stream: Stream, name: str) -> Iterator[list[MarkedGraph]]:
        """Capture as `Device.capture`; the graph is in the list that is yielded, afterwards."""
        captured = self._captured = _Captured()
        done: list[MarkedGraph] = []
        try:
            with self.device.capture(stream, name=name) as graph:
                yield done
        finally:
            self._captured = None
        number = next(_GRAPH_NUMBERS)
        self._graphs[number] = captured
        self._declare_graph(number, captured)
        done.append(MarkedGraph(graph, number))

    def replay(self, graph: MarkedGraph, stream: Stream) -> None:
        self.marks.replay(graph.number, stream)
        graph.graph.replay(stream)

    def range(self, name: str) -> AbstractContextManager[None]:
        return self.marks.range(name)

    def synchronize(self) -> None:
        self.device.synchronize()

    def elapse(self, kind: str, count: int = 1) -> None:
        self.device.elapse(kind, count)

    def _use(self, stream: Stream, reads: Sequence[Buffer], writes: Sequence[Buffer]) -> None:
        if self._captured is not None:
            # A marker within a capture would fire at capture only.
            self._captured.reads.update((buffer.address, buffer) for buffer in reads)
            self._captured.writes.update((buffer.address, buffer) for buffer in writes)
            return
        for buffer in reads:
            self.marks.use(buffer, "r", stream)
        for buffer in writes:
            self.marks.use(buffer, "w", stream)
