"""A host that waits for the device before it prepares what comes next: the device idles so long."""

import statistics
from collections.abc import Iterator

from instrumented_runtime.devices import Kernel
from instrumented_runtime.marks.marked_device import MarkedDevice
from instrumented_runtime.reproducers import Outcome, Reproducer
from instrumented_runtime.reproducers.lab import Lab, work

WARM_UP, STEPS, KERNELS = 5, 40, 200
PREPARE_NS = 600_000
# Of the host's preparation, what a step may take longer than its longer side.
MOST_EXPOSED = 0.25
MODES = ("device-only", "host-sync", "in-queue")
_FORWARD = Kernel("forward", 5_000)
_PUBLISH = Kernel("publish", 2_000, lambda lengths: lengths.add_(1))
_READ = Kernel("read_lengths", 2_000, lambda lengths, seen: seen.add_(lengths))
_DEVICE = {"host_costs_ns": {"prepare": PREPARE_NS}}


class _Steps:
    """Steps that publish a length, which the next step's preparation reads."""

    def __init__(self, device: MarkedDevice) -> None:
        self._device = device
        self._forward = device.stream("forward")
        self._published = device.event()
        self._done = [device.event() for _ in range(2)]
        self._lengths = device.allocate([1], "int64", "lengths")
        self._seen = device.allocate([1], "int64", "seen")
        self._result = device.pinned([1], "int64", "result")
        device.synchronize()
        self._forward_kernels()
        for event in (self._published, *self._done):
            device.record(event, self._forward)
        with device.capture(self._forward, "forward") as done:
            self._forward_kernels()
        self._graph = done[0]
        device.synchronize()

    def step_ns(self, mode: str, number: int) -> int:
        """Prepare and launch a step; return how long the host took for it."""
        device = self._device
        began_ns = device.device.now_ns
        with device.marks.step(number, kind="decode"):
            if mode == "host-sync":
                device.sync(self._published)
            if mode != "device-only":
                work(device, "prepare", PREPARE_NS)
            device.replay(self._graph, self._forward)
            device.record(self._published, self._forward)
            done = self._done[number % 2]
            device.sync(done)  # of the step before the last: no more than two are under way
            device.record(done, self._forward)
        return device.device.now_ns - began_ns

    def summed(self) -> int:
        """Return what the reading kernels saw, added up."""
        self._device.copy_async(self._result, self._seen, self._forward)
        self._device.synchronize()
        return int(self._result.on_host()[0])

    def _forward_kernels(self) -> None:
        device, forward = self._device, self._forward
        device.launch(_READ, forward, [self._lengths], [self._seen])
        for _ in range(KERNELS):
            device.launch(_FORWARD, forward)
        device.launch(_PUBLISH, forward, [], [self._lengths])


def _run(lab: Lab) -> Iterator[Outcome]:
    device_ns = 0.0
    for mode in MODES:
        with lab.mode(mode, _DEVICE) as device:
            steps = _Steps(device)
            times = [steps.step_ns(mode, number) for number in range(STEPS)]
            seen = steps.summed()
        step_ns = statistics.median(times[WARM_UP:])
        device_ns = device_ns or step_ns
        exposed = (step_ns - max(device_ns, PREPARE_NS)) / PREPARE_NS
        problem = f"{exposed:.0%} of the preparation is exposed" if exposed > MOST_EXPOSED else ""
        # 1 + 2 + …: each step reads what the one before it has published.
        expected = sum(range(STEPS + 1))
        if seen != expected:
            problem = f"lengths add up to {seen} instead of {expected}"
        figures = {
            "step, µs": f"{step_ns / 1e3:,.1f}",
            "device, µs": f"{device_ns / 1e3:,.1f}",
            "host, µs": "" if mode == "device-only" else f"{PREPARE_NS / 1e3:,.0f}",
            "n": str(len(times[WARM_UP:])),
        }
        yield Outcome(mode, mode != "host-sync", problem, figures)


REPRODUCER = Reproducer(
    "host-sync-bubble",
    "The host blocks for what the step before published, then prepares: the device idles.",
    lambda _lab: MODES,
    _run,
)
