"""What launches cost the host, and what a stream's dispatch costs the device."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from instrumented_runtime.devices import Device, Event, Kernel, Stream
from instrumented_runtime.probe import Figure, Findings, Probe, Verdict
from instrumented_runtime.probe.medians import is_above, summary
from instrumented_runtime.probe.programs import GRAPH_KERNELS, KERNEL, chain
from instrumented_runtime.probe.report import interval_text

# CUDA holds the host when about a thousand launches are queued.
_LAUNCHES = 256
_MEANINGS = {
    "yes": "small kernels belong into a graph: launched one by one, they wait for the host",
    "no": "the host keeps ahead of small kernels without a graph",
    "undecided": "the interval holds 1×: run it again on an idle machine",
}


def _run(device: Device, repetitions: int) -> Findings:
    stream, event = device.stream(name="probe main"), device.event()
    graph = chain(device, stream, GRAPH_KERNELS)
    graph.replay(stream)  # the first launch uploads it
    # Long enough for the host to queue everything meanwhile.
    unhurried = max(_queue_ns(device, stream, 2 * _LAUNCHES) for _ in range(2))
    delay = Kernel("probe delay", 3 * unhurried)
    rows = []
    for _ in range(repetitions + 1):
        short_ns = _behind_ns(device, stream, event, delay, _LAUNCHES)
        long_ns = _behind_ns(device, stream, event, delay, 2 * _LAUNCHES)
        device.synchronize()
        moments = [device.now_ns]
        graph.replay(stream)
        moments.append(device.now_ns)
        for _ in range(_LAUNCHES):
            event.record(stream)
        moments.append(device.now_ns)
        rows.append((*short_ns, *long_ns, *np.diff(moments)))
    samples = np.array(rows[1:], np.float64)
    return _findings(samples)


def _findings(samples: NDArray[np.float64]) -> Findings:
    """Return what `[repetitions, 6]` float64 nanoseconds say, NaN where the host fell behind."""
    _, short_ns, queueing_ns, long_ns, graph_ns, records_ns = samples.T
    launch_ns = queueing_ns / (2 * _LAUNCHES)
    kernel_ns = (long_ns - short_ns) / _LAUNCHES
    figure = partial(summary, unit="ns")
    ratio = summary(
        "launch_ratio", "a launch to what its kernel takes", "ratio", launch_ns / kernel_ns
    )
    figures: list[Figure] = [
        figure("launch_ns", "host: launch of a kernel", samples=launch_ns),
        figure("graph_launch_ns", f"host: launch of a graph of {GRAPH_KERNELS}", samples=graph_ns),
        figure("call_ns", "host: record of an event", samples=records_ns / _LAUNCHES),
        figure("stream_kernel_ns", "device: kernel of 1.2 µs in a stream", samples=kernel_ns),
        figure("dispatch_ns", "  of which dispatch", samples=kernel_ns - KERNEL.cost_ns),
        ratio,
    ]
    answer = is_above(ratio, 1.0)
    hazard = "launching a small kernel takes longer than running it"
    meaning = _MEANINGS[answer]
    if not ratio.n:
        meaning = (
            "the host could never queue ahead of the device: run it again without launch blocking "
            "(HIP_LAUNCH_BLOCKING, CUDA_LAUNCH_BLOCKING)"
        )
    return Findings(figures, [Verdict(hazard, answer, interval_text(ratio), meaning)])


def _queue_ns(device: Device, stream: Stream, count: int) -> int:
    """Return what so many launches take the host."""
    start = device.now_ns
    for _ in range(count):
        device.launch(KERNEL, stream)
    queued = device.now_ns
    device.synchronize()
    return queued - start


def _behind_ns(
    device: Device, stream: Stream, event: Event, delay: Kernel, count: int
) -> tuple[int, float]:
    """Queue kernels behind a delay; return what that took the host and they the device.

    Both ends of the second are waits of the host, so that what a wait takes cancels. It is NaN if
    the delay was over before all were queued.
    """
    device.synchronize()
    device.launch(delay, stream)
    event.record(stream)
    start = device.now_ns
    for _ in range(count):
        device.launch(KERNEL, stream)
    queued = device.now_ns
    is_late = event.query()
    event.synchronize()
    begun = device.now_ns
    stream.synchronize()
    return queued - start, float("nan") if is_late else device.now_ns - begun


PROBE = Probe("launches", "What do launches cost the host, and dispatches the device?", _run)
