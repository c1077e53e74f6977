"""The programs that several probes time, and the order in which they are timed."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from instrumented_runtime.devices import Device, Graph, Kernel, Stream

# As long as the small kernels of the published figures on pending waits; without a function it
# spins on a real device too.
KERNEL = Kernel("probe kernel", 1_200)
DELAY = Kernel("probe delay", 4_000_000)
# Much longer than launching 64 of them takes the host.
_LONG_DELAY = Kernel("probe long delay", 16_000_000)
GRAPH_KERNELS = 512
_ROUNDS = 3
# Two delays one after the other take 2, side by side 1, and starting the second is not free.
AT_ONCE_LIMIT = 1.5
_CANDIDATES = 8

Times = NDArray[np.int64]


def interleaved(repetitions: int, works: Sequence[Callable[[], int]]) -> Times:
    """Time works in turns, in the reverse order every second time, after one round unseen.

    What drifts, such as the clock of the device, then meets all works alike.

    Returns:
        `[repetitions, len(works)]` int64, nanoseconds: what each work returned.
    """
    times = np.zeros((repetitions + 1, len(works)), np.int64)
    for repetition in range(repetitions + 1):
        order = range(len(works)) if repetition % 2 else reversed(range(len(works)))
        for number in order:
            times[repetition, number] = works[number]()
    return times[1:]


def chain(device: Device, stream: Stream, count: int) -> Graph:
    """Capture so many small kernels, one after the other."""
    with device.capture(stream, name=f"probe chain of {count}") as graph:
        for _ in range(count):
            device.launch(KERNEL, stream)
    return graph


def replay_ns(device: Device, graph: Graph, stream: Stream) -> int:
    """Return what a graph takes on an idle device, from its launch until the host knows."""
    device.synchronize()
    start = device.now_ns
    graph.replay(stream)
    stream.synchronize()
    return device.now_ns - start


def delays_ns(device: Device, streams: Sequence[Stream]) -> int:
    """Return what one delay in each stream takes in all."""
    device.synchronize()
    start = device.now_ns
    for stream in streams:
        device.launch(_LONG_DELAY, stream)
    device.synchronize()
    return device.now_ns - start


def run_at_once(device: Device, streams: Sequence[Stream]) -> bool:
    """Whether a delay in each stream takes about as long as one; by the median of three rounds."""
    works = (lambda: delays_ns(device, streams[:1]), lambda: delays_ns(device, streams))
    one, all_of_them = np.median(interleaved(_ROUNDS, works), axis=0)
    return bool(all_of_them < AT_ONCE_LIMIT * one)


def stream_beside(device: Device, stream: Stream) -> tuple[Stream, bool]:
    """Return a new stream that runs beside another one, and whether it does.

    Streams may share a hardware queue, where nothing runs at once and no wait is pending; of the
    eight that are tried the last is returned if none runs beside it.
    """
    for number in range(_CANDIDATES):
        beside = device.stream(name=f"probe side {number}")
        if run_at_once(device, [stream, beside]):
            return beside, True
    return beside, False
