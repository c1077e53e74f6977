"""What a layer computes before its attention: on one stream, or its compressors beside the rest.

The compressors need the layer's normalised input only, and so does the path to queries, keys and
values. Each is a GEMM of few rows that reads its weights and leaves most of the device idle, so
they can run at once: the side streams wait for the main one (fork), each compressor is queued on
one of them, the main stream goes on with its own path and then waits for them (join).

That pays where waiting for another stream is cheap. On HIP without ordering edges a wait that is
pending in another hardware queue delays every dispatch of the main stream, and the side streams
wait from one layer to the next: there the same code is slower than one stream.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from instrumented_runtime.devices import Buffer, Event, Kernel, Platform, Stream
from instrumented_runtime.marks.marked_device import MarkedDevice

# Beyond so many tokens a compressor's GEMM fills the device by itself.
MOST_TOKENS = 64

T = TypeVar("T")
# Queues its work on the stream that it is given.
Job = Callable[[Stream], None]


def is_overlap_on(asked: bool | None, *, platform: Platform) -> bool:
    """Return whether compressors go to side streams: as asked; if nobody did, not on HIP.

    What was asked for holds on every platform, so that it can be tried on HIP as well.
    """
    return platform != "hip" if asked is None else asked


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel, and what it reads and writes."""

    kernel: Kernel
    reads: Sequence[Buffer] = ()
    writes: Sequence[Buffer] = ()


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """What a layer does before its attention.

    Attributes:
        qkv: The path to queries, keys and values; writes `q` and `kv`.
        q: What attention takes as queries, device.
        kv: The unified buffer of keys and values that attention reads, device.
        core: Queues the compressor of the layer's cache; None without one.
        indexer: Queues the indexer's compressor; None without one.
    """

    qkv: Sequence[Launch]
    q: Buffer
    kv: Buffer
    core: Job | None = None
    indexer: Job | None = None

    def __post_init__(self) -> None:
        """Refuse a path that leaves what attention reads as it was.

        Raises:
            ValueError: Nothing of `qkv` writes it.
        """
        written = [buffer for launch in self.qkv for buffer in launch.writes]
        for buffer in (self.q, self.kv):
            if buffer not in written:
                raise ValueError(f"qkv: nothing writes {buffer.name}, which attention reads")


class SideStreams:
    """Streams beside a main one, and the events of fork and join; made once, used by all layers.

    They may share hardware queues with each other and with the main stream: then less runs at once,
    in the same order.
    """

    def __init__(self, device: MarkedDevice, count: int) -> None:
        """Make streams.

        Args:
            device: Of what.
            count: How many.

        Raises:
            ValueError: It is below 1.
        """
        if count < 1:
            raise ValueError(f"side_streams: {count!r} is not allowed; give a whole number ≥ 1")
        self._device = device
        self.streams = [device.stream(f"side {number}") for number in range(count)]
        self._forked = device.event()
        self._joined: list[Event] = [device.event() for _ in range(count)]

    def beside(self, main: Stream, jobs: Sequence[Job], work: Callable[[], T]) -> T:
        """Queue jobs on side streams beside what `work` queues on the main stream.

        Afterwards the main stream waits for all of it. Jobs go to the streams in turn; those that
        share one run in their order. A side stream without a job is left alone. If anything raises,
        what was forked is joined all the same, so that a capture under way can still end well.

        Args:
            main: The stream that is forked and joined.
            jobs: Queue their work on the stream that each is given.
            work: Queues work on the main stream.

        Returns:
            What `work` returns.
        """
        used = range(min(len(jobs), len(self.streams)))
        if not used:
            return work()
        device, forked = self._device, 0
        try:
            with device.range("fork"):
                device.record(self._forked, main)
                for place in used:
                    device.wait(self._forked, self.streams[place])
                    forked += 1
            for number, job in enumerate(jobs):
                stream = self.streams[number % len(used)]
                with device.range(stream.name):
                    job(stream)
            return work()
        finally:
            with device.range("join"):
                for place in range(forked):
                    device.record(self._joined[place], self.streams[place])
                    device.wait(self._joined[place], main)


def prepare(device: MarkedDevice, layer: LayerInputs, main: Stream) -> tuple[Buffer, Buffer]:
    """Queue it all on one stream; return queries, and keys and values."""
    for job in _jobs(layer):
        job(main)
    return prepare_qkv(device, layer, main)


def prepare_multi_stream(
    device: MarkedDevice, layer: LayerInputs, main: Stream, sides: SideStreams
) -> tuple[Buffer, Buffer]:
    """As `prepare`, with the compressors on side streams; the main stream waits for them last."""
    return sides.beside(main, _jobs(layer), lambda: prepare_qkv(device, layer, main))


def prepare_qkv(device: MarkedDevice, layer: LayerInputs, main: Stream) -> tuple[Buffer, Buffer]:
    """Queue the main path; return queries, and the buffer that holds keys and values.

    Both ways share it, so that attention never reads a buffer that only the other has written.
    """
    with device.range("prepare_qkv"):
        for launch in layer.qkv:
            device.launch(launch.kernel, main, launch.reads, launch.writes)
    return layer.q, layer.kv


def _jobs(layer: LayerInputs) -> list[Job]:
    return [job for job in (layer.core, layer.indexer) if job is not None]
