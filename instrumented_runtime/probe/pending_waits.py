"""What a dispatch of a graph costs, alone and while a wait is pending in another queue."""

from instrumented_runtime.devices import Device, Graph
from instrumented_runtime.probe import Answer, Figure, Findings, Probe, Verdict
from instrumented_runtime.probe.medians import is_above, summary
from instrumented_runtime.probe.programs import (
    GRAPH_KERNELS,
    KERNEL,
    chain,
    interleaved,
    replay_ns,
    stream_beside,
)
from instrumented_runtime.probe.report import interval_text

# Below it nobody would move the scheduler to another stream.
_LIMIT = 1.05
_HAZARD = "pending waits slow dispatch"


def _run(device: Device, repetitions: int) -> Findings:
    """Time graphs of two lengths, each with and without a stream that waits for their end.

    A wait for the graph's own end is pending from its first kernels to its last, however long that
    takes. The difference between the lengths holds neither its first kernels nor the launch.
    """
    main, done = device.stream(name="probe main"), device.event()
    side, runs_beside = stream_beside(device, main)
    graphs = [chain(device, main, count * GRAPH_KERNELS) for count in (1, 2)]

    def waited_for_ns(graph: Graph) -> int:
        device.synchronize()
        start = device.now_ns
        graph.replay(main)
        done.record(main)
        done.wait(side)
        main.synchronize()
        return device.now_ns - start

    short, long = graphs
    times = interleaved(
        repetitions,
        [
            lambda: replay_ns(device, short, main),
            lambda: waited_for_ns(short),
            lambda: replay_ns(device, long, main),
            lambda: waited_for_ns(long),
        ],
    )
    alone = (times[:, 2] - times[:, 0]) / GRAPH_KERNELS
    pending = (times[:, 3] - times[:, 1]) / GRAPH_KERNELS
    kernel = f"kernel of {KERNEL.cost_ns / 1_000:g} µs in a graph"
    added = summary(
        "pending_wait_dispatch_ns", "  which a dispatch costs more", "ns", pending - alone
    )
    ratio = summary("pending_wait_ratio", "  with it, to alone", "ratio", pending / alone)
    figures = [
        summary("graph_kernel_ns", f"{kernel}, alone", "ns", alone),
        summary("graph_dispatch_ns", "  of which dispatch", "ns", alone - KERNEL.cost_ns),
        summary("pending_wait_kernel_ns", f"{kernel}, wait pending", "ns", pending),
        added,
        ratio,
    ]
    answer = is_above(ratio, _LIMIT)
    meaning = _meaning(answer, added)
    if not runs_beside:
        answer = "undecided"
        meaning = (
            "no other stream ran beside the graph's, so that no wait was pending in another queue: "
            "run it again with more than one hardware queue and without launch blocking "
            "(GPU_MAX_HW_QUEUES, HIP_LAUNCH_BLOCKING)"
        )
    return Findings(figures, [Verdict(_HAZARD, answer, interval_text(ratio), meaning)])


def _meaning(answer: Answer, added: Figure) -> str:
    if answer == "no":
        return (
            "the host-sync workaround can go on this driver: a stream may wait for the forward on "
            "the device (policy event-wait)"
        )
    if answer == "yes":
        per_graph_us = (added.median or 0) * GRAPH_KERNELS / 1_000
        return (
            "keep waits out of other queues while a graph runs: run the scheduler on the forward "
            f"stream (policy forward-stream); one costs a graph of {GRAPH_KERNELS} kernels "
            f"{per_graph_us:,.0f} µs"
        )
    return "the interval holds 1.05×: let the machine idle and run it again"


PROBE = Probe(
    "pending-waits",
    "What does a dispatch of a graph cost, alone and with a wait pending in another queue?",
    _run,
)
