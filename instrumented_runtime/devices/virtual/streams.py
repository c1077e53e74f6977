"""Streams, events, the hardware queues that streams share, and the null stream's rules."""

import random
from collections.abc import Sequence

from instrumented_runtime.devices import Stream, StreamFlags
from instrumented_runtime.devices.virtual.config import Config
from instrumented_runtime.devices.virtual.graphs import Branch, Moment
from instrumented_runtime.devices.virtual.host import Host
from instrumented_runtime.devices.virtual.packets import BARRIER, KIND, STREAM, Queue, Signal

NULL_PRIORITY = 1 << 30
# Assumed: for so long after its last work the null stream stays where it is, if it moves at all.
_NULL_KEEPS_NS = 1_000_000


class VirtualStream:
    """An in-order queue of work.

    Attributes:
        queue: Its hardware queue, once it has had work.
        branch: What is captured of it, during a capture.
        is_ordered: Whether the null stream's rules concern it.
    """

    def __init__(
        self, streams: "Streams", handle: int, flags: StreamFlags, priority: int, name: str
    ) -> None:
        """Make a stream without work."""
        self.streams = streams
        self.number = len(streams.all)
        self.handle = handle
        self.flags: StreamFlags = flags
        self.priority = priority
        self.name = name or f"stream {self.number}"
        self.queue: Queue | None = None
        self.branch: Branch | None = None
        self.is_ordered = flags != "nonblocking"
        self.has_work_since_null = False
        self.null_work_seen = 0

    def synchronize(self) -> None:
        streams = self.streams
        streams.refuse_capture("hipStreamSynchronize")
        start = streams.host.begin("hipStreamSynchronize")
        if self.flags == "null":
            streams.ready(self)  # which lets it wait for blocking streams, and so the host
        streams.host.wait_for_queues([self.queue] if self.queue else [])
        streams.host.end("hipStreamSynchronize", start, self.handle)


class VirtualEvent:
    """A mark in a stream."""

    def __init__(self, streams: "Streams", handle: int) -> None:
        """Make an event that was never recorded."""
        self._streams = streams
        self.handle = handle
        self._signal: Signal | None = None
        self._captured: Moment | None = None

    @property
    def done_ns(self) -> int | None:
        """When the last record was done, as the device itself knows; None before."""
        return self._signal.done_ns if self._signal else None

    def record(self, stream: Stream) -> None:
        on = self._streams.own(stream)
        host = self._streams.host
        start = host.begin("hipEventRecord")
        if on.branch is not None:
            self._captured = on.branch.record()
        else:
            self._captured = None
            queue = self._streams.ready(on)
            self._signal = host.marker(queue)
        host.end("hipEventRecord", start, self.handle, on.handle)

    def wait(self, stream: Stream) -> None:
        on = self._streams.own(stream)
        host = self._streams.host
        start = host.begin("hipStreamWaitEvent")
        moment = self._captured
        if moment is not None and moment.branch.capture.is_open:
            if on.branch is not None and on.branch.capture is not moment.branch.capture:
                raise RuntimeError("hipStreamWaitEvent: the event belongs to another capture")
            if on.branch is None:
                on.branch = moment.branch.capture.branch_of(on)
            on.branch.wait(moment)
        elif on.branch is not None and (moment is not None or self._signal is not None):
            raise RuntimeError(
                "hipStreamWaitEvent: a captured stream cannot wait for an event recorded outside"
            )
        elif self._signal is not None:
            # In the queue of the record it is satisfied by order, and a satisfied wait is free.
            host.barrier(self._streams.ready(on), None, [self._signal])
        host.end("hipStreamWaitEvent", start, on.handle, self.handle, 0)

    def query(self) -> bool:
        self._streams.refuse_capture("hipEventQuery")
        host = self._streams.host
        start = host.begin("hipEventQuery")
        host.catch_up()
        is_done = self._signal is None or self._signal.done_ns is not None
        host.end("hipEventQuery", start, self.handle)
        return is_done

    def synchronize(self) -> None:
        self._streams.refuse_capture("hipEventSynchronize")
        host = self._streams.host
        start = host.begin()
        if self._signal is not None:
            host.wait_for(self._signal)
        host.end("hipEventSynchronize", start, self.handle)


class NullQueue:
    """Which hardware queue the null stream gets, where it moves; its own on ROCm 10 in any case.

    Attributes:
        may_move: Whether it chooses again after a while without work.
        used_ns: When it last had work.
    """

    def __init__(self, config: Config) -> None:
        """Choose as a configuration says; equal seeds choose alike."""
        self._share = config.null_follows_share
        self.may_move = self._share is not None
        self.used_ns = 0
        self._random = random.Random(f"null stream {config.seed}")

    def choice(self, pool: Sequence[Queue]) -> Queue:
        """Return the fullest queue or, of the others, the one that the fewest streams use."""
        fullest = max(pool, key=lambda queue: len(queue.packets))
        others = [queue for queue in pool if queue is not fullest]
        follows = self._random.random() < (self._share or 0.0)
        return fullest if follows or not others else min(others, key=_num_streams)


def _num_streams(queue: Queue) -> int:
    return queue.streams


class Streams:
    """All streams of a device and the hardware queues they share."""

    def __init__(self, host: Host) -> None:
        """Start with the null stream."""
        self.host = host
        self.all: list[VirtualStream] = []
        self._pools: dict[int, list[Queue]] = {}
        self._null_work = 0
        self.null = self.add("null", 0, "null")
        self.null_queue = NullQueue(host.config)

    def add(self, flags: StreamFlags, priority: int, name: str) -> VirtualStream:
        """Add a stream."""
        handle = 0 if flags == "null" else self.host.new_handle()
        stream = VirtualStream(self, handle, flags, priority, name)
        self.host.record.stream(stream.number)
        self.all.append(stream)
        return stream

    def own(self, stream: Stream) -> VirtualStream:
        """Return a stream as this device's.

        Raises:
            ValueError: It is another device's.
        """
        if isinstance(stream, VirtualStream) and stream.streams is self:
            return stream
        raise ValueError(f"stream: {stream.name} is not a stream of this device")

    def ready(self, stream: VirtualStream) -> Queue:
        """Return the queue of a stream that is about to get work, the null stream's rules kept."""
        if stream is self.null and self.null_queue.may_move:
            self._move_null()
        queue = stream.queue or self.queue_of(stream)
        if not stream.is_ordered:
            return queue
        if stream.flags == "null":
            self._null_work += 1
            others = [other for other in self.all if other.has_work_since_null]
            for other in others:
                other.has_work_since_null = False
        else:
            stream.has_work_since_null = True
            others = [self.null] if stream.null_work_seen < self._null_work else []
            stream.null_work_seen = self._null_work
        queues = {self.queue_of(other).number: self.queue_of(other) for other in others}
        waits = [self.host.marker(other) for other in queues.values() if other is not queue]
        if waits:
            self.host.barrier(queue, None, waits)
        return queue

    def queue_of(self, stream: VirtualStream) -> Queue:
        """Return the hardware queue of a stream: chosen at its first work, the least used."""
        if stream.queue is None:
            pool = self.pool(stream)
            if stream.flags == "null" and self.null_queue.may_move:
                stream.queue = self.null_queue.choice(pool)
            else:
                stream.queue = min(pool, key=_num_streams)
            stream.queue.streams += 1
        return stream.queue

    def _move_null(self) -> None:
        """Let the null stream choose a queue anew, if it has had nothing to do for a while."""
        queue, now_ns = self.null.queue, self.host.now_ns
        is_rested = now_ns - self.null_queue.used_ns >= _NULL_KEEPS_NS
        self.null_queue.used_ns = now_ns
        if not is_rested:
            return
        self.host.catch_up()
        # A barrier names no stream.
        pending = (packet for packet in queue.packets if packet[KIND] != BARRIER) if queue else ()
        if queue is not None and all(packet[STREAM] != self.null.number for packet in pending):
            queue.streams -= 1
            self.null.queue = None

    def pool(self, stream: VirtualStream) -> list[Queue]:
        """Return the queues that a stream may use; they are made as they are needed."""
        config = self.host.config
        is_own = stream.flags == "null" and config.rocm == "10"
        pool = self._pools.setdefault(NULL_PRIORITY if is_own else stream.priority, [])
        if len(pool) < (1 if is_own else config.max_hw_queues) and stream.queue is None:
            self._add_queue(pool)
        return pool

    def beside(self, stream: VirtualStream, count: int) -> list[Queue]:
        """Return `count` queues for branches of a graph: the stream's own, then its neighbours."""
        own = self.queue_of(stream)
        pool = self.pool(stream)
        if stream.flags != "null":
            while len(pool) < min(count, self.host.config.max_hw_queues):
                self._add_queue(pool)
        first = pool.index(own)
        return [pool[(first + branch) % len(pool)] for branch in range(count)]

    def _add_queue(self, pool: list[Queue]) -> None:
        number = len(self.host.simulation.queues) + 1
        self.host.record.queue(number)
        pool.append(Queue(number))
        self.host.simulation.queues.append(pool[-1])

    def refuse_capture(self, call: str) -> None:
        """Refuse what a capture cannot hold.

        Raises:
            RuntimeError: A stream is being captured.
        """
        if any(stream.branch is not None for stream in self.all):
            raise RuntimeError(f"{call}: not allowed while a stream is being captured")
