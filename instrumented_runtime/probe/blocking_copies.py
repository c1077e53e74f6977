"""Whether a blocking copy waits for the kernels of a stream, and what it takes."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from instrumented_runtime.devices import Buffer, Device, Stream, StreamFlags
from instrumented_runtime.probe import Figure, Findings, Probe, Verdict
from instrumented_runtime.probe.medians import summary
from instrumented_runtime.probe.programs import DELAY, Times, interleaved
from instrumented_runtime.probe.report import interval_text, time_text

_BYTES = 4 << 10
# On one of few hardware queues a copy stands behind a stream by accident: several are asked.
_STREAMS = 8
_KINDS: dict[StreamFlags, str] = {"nonblocking": "non-blocking", "blocking": "blocking"}


def _run(device: Device, repetitions: int) -> Findings:
    """Copy to the device while a delay runs in one of eight streams of each kind."""
    target = device.allocate([_BYTES], "uint8", name="probe target")
    pinned, pageable = (
        device.host_buffer([_BYTES], "uint8", pinned=is_pinned, name="probe source")
        for is_pinned in (True, False)
    )
    idle = interleaved(repetitions, [lambda: _copy_ns(device, target, pinned)])
    figures = [summary("idle_copy_ns", "copy of 4 KiB, device idle", "ns", idle[:, 0])]
    verdicts = []
    for flags, kind in _KINDS.items():
        streams = [device.stream(flags=flags, name=f"probe {flags}") for _ in range(_STREAMS)]
        for source in (pinned, pageable):
            times = _behind_delays(device, streams, target, source, repetitions)
            # One figure per repetition, since streams of one repetition are not independent.
            what = f"  from {source.place}, {kind} stream busy"
            name = f"{flags}_{source.place}_copy_ns"
            valid_ns = np.where(times, np.abs(times), np.nan)
            figures.append(summary(name, what, "ns", np.median(valid_ns, axis=1)))
            if source is pinned:
                verdicts.append(_verdict(flags, times, figures[-1]))
    device.free(target)
    return Findings(figures, verdicts)


def _copy_ns(device: Device, target: Buffer, source: Buffer) -> int:
    device.synchronize()
    start = device.now_ns
    device.copy(target, source)
    return device.now_ns - start


def _behind_delays(
    device: Device, streams: Sequence[Stream], target: Buffer, source: Buffer, repetitions: int
) -> Times:
    """Copy while a delay runs in a stream, in each in turn.

    Returns:
        `[repetitions, num_streams]` int64 nanoseconds until the copy returned, negative where the
        delay still ran then, 0 where it need not have run when the copy began.
    """
    done = device.event()

    def copy_ns(stream: Stream) -> int:
        device.synchronize()
        begun = device.now_ns
        device.launch(DELAY, stream)
        done.record(stream)
        start = device.now_ns
        if start - begun > DELAY.cost_ns // 2:
            return 0  # the launch held the host, so the delay may be over
        device.copy(target, source)
        taken = device.now_ns - start
        return taken if done.query() else -taken

    times = interleaved(repetitions, [partial(copy_ns, stream) for stream in streams])
    device.synchronize()
    return times


def _verdict(flags: StreamFlags, times: Times, taken: Figure) -> Verdict:
    """Say whether copies overtook a kind of stream; one that did is a proof, none that did not."""
    hazard = f"blocking copies overtake {_KINDS[flags]} streams"
    streams = times.shape[1]
    copies, early = int((times != 0).sum()), int((times < 0).sum())
    overtaken = int((times < 0).any(axis=0).sum())
    evidence = (
        f"{early} of {copies} copies returned while the stream's kernel of "
        f"{time_text(DELAY.cost_ns)} ran, on {overtaken} of {streams} streams; "
        f"{interval_text(taken)}"
    )
    if not copies:
        meaning = (
            "no kernel ran when the copies began: run it again without launch blocking "
            "(HIP_LAUNCH_BLOCKING, CUDA_LAUNCH_BLOCKING)"
        )
        return Verdict(hazard, "undecided", "no valid repetition", meaning)
    meaning = _meaning(flags, overtaken, streams - overtaken)
    return Verdict(hazard, "yes" if overtaken else "no", evidence, meaning)


def _meaning(flags: StreamFlags, overtaken: int, waited_for: int) -> str:
    if not overtaken and flags == "blocking":
        return "as the null stream's rules promise"
    if not overtaken:
        return (
            "nothing promises that: the streams may share one hardware queue, or copies may be "
            "serialised (GPU_MAX_HW_QUEUES, AMD_SERIALIZE_COPY)"
        )
    meaning = (
        "a blocking copy does not wait for kernels that still read its destination: copy from "
        "pinned memory in the stream (copy_async), or synchronise the stream first"
    )
    if waited_for:
        meaning += (
            f"; that it waited for {waited_for} streams is an accident, probably of a shared "
            "hardware queue"
        )
    return meaning


PROBE = Probe("blocking-copies", "Does a blocking copy wait for the kernels of a stream?", _run)
