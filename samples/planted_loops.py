"""Loops whose device idles for a planted reason; `record_planted.py` records them."""

import sys
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from instrumented_runtime.devices import Device, Event, Kernel, Stream
from instrumented_runtime.marks import Marks
from instrumented_runtime.marks.marked_device import MarkedDevice

if TYPE_CHECKING:
    from torch import Tensor

STEPS = 6
HOST_WORK_S = 500e-6
SLEEP_S = 3e-3
TINY_KERNELS_PER_STEP = 40
HOPS_PER_STEP = 4


class Idle(NamedTuple):
    """Why the device idles in a phase, in the words of tracekit's ledger; None for never mind."""

    cause: str | None
    owner: str | None = None
    owner_caller: str | None = None
    range: str | None = None


IDLE = {
    "host-sync": Idle("host-blocked", "cudaEventSynchronize", None, "prepare"),
    "item": Idle("host-blocked", "cudaStreamSynchronize", "aten::_local_scalar_dense", "prepare"),
    "host-work": Idle("host-late", range="prepare"),
    "tiny-kernels": Idle("host-late"),
    "stream-wait": Idle("queue-wait"),
    # The control: all that idles are the microseconds from one kernel to the next.
    "saturation": Idle(None),
    "starvation": Idle("starved"),
}


class Loop:
    """A device, two streams of it, and what loops on it have in common."""

    def __init__(self, device: Device, marks: Marks) -> None:
        self.device = MarkedDevice(device, marks)
        self.forward, self.side = self.device.stream("forward"), self.device.stream("side")
        self._numbers = count()

    def step(self, name: str) -> AbstractContextManager[None]:
        """Return the range of one step."""
        return self.device.marks.step(next(self._numbers), kind=name)

    def spin(self, duration_us: int, stream: Stream | None = None) -> None:
        """Keep one thread of the device busy."""
        self.device.launch(Kernel("spin", duration_us * 1000), stream or self.forward)

    def work(self, duration_s: float = HOST_WORK_S) -> None:
        """Keep the host's thread busy: sleeping would hide in the operating system."""
        with self.device.range("prepare"):
            until = time.perf_counter() + duration_s
            while time.perf_counter() < until:
                pass

    def hand_over(self, event: Event, recording: Stream, waiting: Stream) -> None:
        """Let one stream wait for all that another was given."""
        self.device.record(event, recording)
        self.device.wait(event, waiting)


class IdleLoop(Loop):
    """The phases of `IDLE`."""

    def __init__(self, device: Device, marks: Marks) -> None:
        super().__init__(device, marks)
        self._published = self.device.event()
        self._length = self.device.allocate((1,), "int64", "length")
        self._tiny = self.device.allocate((1,), "float32", "tiny")
        self._phases = {
            "host-sync": self._host_sync,
            "item": self._item,
            "host-work": self._host_work,
            "tiny-kernels": self._tiny_kernels,
            "stream-wait": self._stream_wait,
            "saturation": self._saturation,
            "starvation": self._starvation,
        }

    def run(self, names: Iterable[str] = IDLE) -> None:
        """Run phases; the device is busy when one begins and when it ends."""
        self.spin(100)
        self.device.synchronize()
        for name in names:
            # Two, and the host is ahead of the device: what comes is no fault of an earlier wait.
            self.spin(200)
            self.spin(200)
            # No range is open while nothing comes, so this phase is from its first to its last.
            is_open = name != "starvation"
            with self.device.range(f"phase {name}") if is_open else nullcontext():
                self._phases[name]()
                self.spin(400)
            self.device.synchronize()

    def _host_sync(self) -> None:
        for _ in range(STEPS):
            with self.step("host-sync"):
                self.spin(200)
                self.device.record(self._published, self.forward)
                self.device.sync(self._published)
                self.work()

    def _item(self) -> None:
        for _ in range(STEPS):
            with self.step("item"):
                self.spin(200)
                kernel = Kernel("item", 2000, _read_item)
                self.device.launch(kernel, self.forward, reads=(self._length,))
                self.work()

    def _host_work(self) -> None:
        for _ in range(STEPS):
            with self.step("host-work"):
                self.spin(100)
                self.work()

    def _tiny_kernels(self) -> None:
        kernel = Kernel("add_one", 2000, _add_one)
        for _ in range(STEPS):
            with self.step("tiny-kernels"):
                for _ in range(TINY_KERNELS_PER_STEP):
                    # Not marked: a marker takes as long as a launch.
                    self.device.device.launch(kernel, self.forward, writes=(self._tiny,))

    def _stream_wait(self) -> None:
        # All is submitted while this runs; then each stream waits for the other, in turns.
        self.spin(5000)
        recording, waiting = self.forward, self.side
        for _ in range(STEPS):
            with self.step("stream-wait"):
                for _ in range(HOPS_PER_STEP):
                    self.hand_over(self.device.event(), recording, waiting)
                    self.spin(100, waiting)
                    recording, waiting = waiting, recording
        self._follow(recording)

    def _saturation(self) -> None:
        for _ in range(STEPS):
            with self.step("saturation"):
                for _ in range(4):
                    self.spin(200)
        self._follow(self.forward)

    def _follow(self, stream: Stream) -> None:
        """Hold the phase open until the device is through all but one kernel."""
        self.device.record(self._published, stream)
        self.spin(400, stream)
        self.device.sync(self._published)

    def _starvation(self) -> None:
        for _ in range(STEPS):
            with self.device.range("phase starvation"), self.step("starvation"):
                self.spin(200)
            time.sleep(SLEEP_S)
        with self.device.range("phase starvation"):
            self.spin(400)


def _read_item(length: "Tensor") -> None:
    length.item()


def _add_one(tiny: "Tensor") -> None:
    tiny.add_(1)
