"""What it costs to fork a graph onto a side stream and to join it again."""

import numpy as np

from instrumented_runtime.devices import Device, Event, Graph, Kernel, Stream
from instrumented_runtime.probe import Findings, Probe, Verdict
from instrumented_runtime.probe.medians import is_above, summary
from instrumented_runtime.probe.programs import AT_ONCE_LIMIT, DELAY, KERNEL, interleaved, replay_ns
from instrumented_runtime.probe.report import interval_text, time_text

_FORKS = 64


def _run(device: Device, repetitions: int) -> Findings:
    """Time graphs with 64 and 128 forks, with the side branches and without.

    A segment is a kernel, then another one with a kernel of the same length on a side stream
    beside it, then the join. Side branches that cost nothing would add nothing.
    """
    main, side = device.stream(name="probe main"), device.stream(name="probe side")
    graphs = [
        _segments(device, main, side if is_forked else None, count)
        for is_forked in (False, True)
        for count in (_FORKS, 2 * _FORKS)
    ]
    works = [lambda graph=graph: replay_ns(device, graph, main) for graph in graphs]
    times = interleaved(repetitions, works)
    plain = (times[:, 1] - times[:, 0]) / _FORKS
    forked = (times[:, 3] - times[:, 2]) / _FORKS
    cost = summary("fork_join_ns", "a fork and join more than none", "ns", forked - plain)
    figures = [
        summary("segment_ns", "two kernels in a row", "ns", plain),
        summary("forked_segment_ns", "  with a third one on a side stream", "ns", forked),
        cost,
    ]
    hazard = f"a fork and join costs more than a kernel of {time_text(KERNEL.cost_ns)}"
    answer = is_above(cost, KERNEL.cost_ns)
    meaning = "the interval holds what the kernel takes: run it again on an idle machine"
    if not _branches_run_at_once(device, main, side):
        meaning = "side streams hide nothing in a graph here: its branches run one after the other"
    elif answer != "undecided" and cost.median is not None:
        least = time_text(max(cost.median, 0))
        meaning = f"a side stream pays in a graph where a fork hides more than {least} of work"
    return Findings(figures, [Verdict(hazard, answer, interval_text(cost), meaning)])


def _branches_run_at_once(device: Device, main: Stream, side: Stream) -> bool:
    """Whether a fork with a delay in each branch takes about as long as one delay."""
    one, two = (_delays(device, main, beside) for beside in (None, side))
    works = (lambda: replay_ns(device, one, main), lambda: replay_ns(device, two, main))
    alone_ns, beside_ns = np.median(interleaved(3, works), axis=0)
    return bool(beside_ns < AT_ONCE_LIMIT * alone_ns)


def _delays(device: Device, main: Stream, side: Stream | None) -> Graph:
    fork, join = device.event(), device.event()
    with device.capture(main, name="probe branches") as graph:
        _launch_beside(device, DELAY, main, side, (fork, join))
    return graph


def _segments(device: Device, main: Stream, side: Stream | None, count: int) -> Graph:
    fork, join = device.event(), device.event()
    with device.capture(main, name=f"probe {count} segments") as graph:
        for _ in range(count):
            device.launch(KERNEL, main)
            _launch_beside(device, KERNEL, main, side, (fork, join))
    return graph


def _launch_beside(
    device: Device, kernel: Kernel, main: Stream, side: Stream | None, events: tuple[Event, Event]
) -> None:
    """Launch a kernel and, if there is a side stream, the same there between a fork and a join."""
    fork, join = events
    if side is not None:
        fork.record(main)
        fork.wait(side)
        device.launch(kernel, side)
        join.record(side)
    device.launch(kernel, main)
    if side is not None:
        join.wait(main)


PROBE = Probe("forks", "What do a fork onto a side stream and its join cost in a graph?", _run)
