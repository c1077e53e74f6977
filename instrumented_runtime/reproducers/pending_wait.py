"""A graph whose dispatches take longer while a wait is pending in another hardware queue."""

import statistics
from collections.abc import Iterator

from instrumented_runtime.devices import Kernel, Stream
from instrumented_runtime.marks.marked_device import MarkedDevice, MarkedGraph
from instrumented_runtime.reproducers import Outcome, Reproducer
from instrumented_runtime.reproducers.lab import Lab

KERNELS, WARM_UP, REPLAYS = 512, 2, 20
# Modes of one run differ by up to 1.07 on a GPU whose clock moves; the effect is 1.8.
SLOWER = 1.25
_KERNEL = Kernel("forward", 1_200)
_COUNT = Kernel("count", 1_200, lambda counter: counter.add_(1))

# Of so many replays how many are waited for, by mode; in `same-stream` it is the graph's own stream
# that waits, where order satisfies it.
_WAITS = {"without": (1, 0), "with": (1, 1), "alternating": (2, 1), "same-stream": (1, 1)}
_FIXED = ("without", "same-stream")


class _Program:
    """A graph of small kernels, and a stream beside it that may wait for its end."""

    def __init__(self, device: MarkedDevice) -> None:
        self._device = device
        self._forward, self._other = device.stream("forward"), device.stream("schedule")
        self._event = device.event()
        self._counter = device.allocate([1], "int64", "counter")
        self._result = device.pinned([1], "int64", "result")
        device.synchronize()
        device.launch(_COUNT, self._forward, [], [self._counter])
        device.launch(_KERNEL, self._other)
        device.synchronize()
        with device.capture(self._forward, "forward") as done:
            for _ in range(KERNELS - 1):
                device.launch(_KERNEL, self._forward)
            device.launch(_COUNT, self._forward, [], [self._counter])
        self._graph: MarkedGraph = done[0]

    def replay_ns(self, number: int, waiting: Stream | None) -> int:
        """Replay once, perhaps with a stream waiting for the end; return what the host saw."""
        device = self._device
        device.synchronize()
        with device.marks.step(number, kind="replay"):
            began_ns = device.device.now_ns
            device.replay(self._graph, self._forward)
            if waiting is not None:
                device.record(self._event, self._forward)
                device.wait(self._event, waiting)
                device.launch(_KERNEL, waiting)
            self._forward.synchronize()
            return device.device.now_ns - began_ns

    def run(self, mode: str) -> tuple[list[int], list[int], int]:
        """Return times of replays nobody waits for, of the others, and how often it counted."""
        waiting = self._forward if mode == "same-stream" else self._other
        free: list[int] = []
        waited_for: list[int] = []
        of, waits = _WAITS[mode]
        for replay in range(WARM_UP + REPLAYS):
            is_waited_for = replay % of < waits
            took_ns = self.replay_ns(replay, waiting if is_waited_for else None)
            if replay >= WARM_UP:
                (waited_for if is_waited_for else free).append(took_ns)
        self._device.copy_async(self._result, self._counter, self._forward)
        self._device.synchronize()
        return free, waited_for, int(self._result.on_host()[0])


def _run(lab: Lab) -> Iterator[Outcome]:
    alone_ns = 0.0
    for mode in _WAITS:
        with lab.mode(mode) as device:
            free, waited_for, counted = _Program(device).run(mode)
        # A mode with both kinds of replay is held against itself.
        alone_ns = statistics.median(free) if free else alone_ns
        slowest = max(statistics.median(times) for times in (free, waited_for) if times)
        ratio = slowest / alone_ns
        problem = f"{ratio:.2f} × as long" if ratio > SLOWER else ""
        # Once more before the capture.
        if counted != 1 + WARM_UP + REPLAYS:
            problem = f"counted to {counted} instead of {1 + WARM_UP + REPLAYS}"
        figures = {
            "graph, µs": f"{alone_ns / 1e3:,.1f}" if free else "",
            "with a wait, µs": f"{statistics.median(waited_for) / 1e3:,.1f}" if waited_for else "",
            "ratio": f"{ratio:.2f}",
            "n": f"{len(free)} + {len(waited_for)}",
        }
        yield Outcome(mode, mode in _FIXED, problem, figures)


REPRODUCER = Reproducer(
    "pending-wait",
    "A graph of 512 kernels, alone and while another stream waits for its end.",
    lambda _lab: tuple(_WAITS),
    _run,
)
