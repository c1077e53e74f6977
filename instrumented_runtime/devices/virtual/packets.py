"""What a hardware queue holds: packets, the signals between them, and the queue itself."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

KERNEL, COPY, BARRIER, RUN = range(4)
# States of a queue: nothing to do, its first packet may begin at `next_ns`, is being dispatched
# until then, runs until then, or waits for signals.
EMPTY, READY, STARTING, RUNNING, BLOCKED = range(5)

Int64s = NDArray[np.int64]
Action = Callable[[], object]


class Signal:
    """Becomes done once, when the device reaches it; queues and the host wait for it."""

    __slots__ = ("done_ns", "waiters")

    def __init__(self) -> None:
        """Make a signal that a packet will complete."""
        self.done_ns: int | None = None
        self.waiters: list[Queue] = []


# A packet: kind; when it is in the queue; cost; number of the HIP call that put it there; number of
# its stream; what it is (kernel number; copy's direction, addresses, bytes; a barrier's signals to
# wait for; Run); what it does to tensors; sensitivity; what it completes. A plain tuple, since
# queues hold very many and the garbage collector passes over tuples of plain values only.
Packet = tuple[int, int, int, int, int, Any, Action | None, float, Signal | None]
KIND: Final = 0
ARRIVES_NS: Final = 1
STREAM: Final = 4
WHAT: Final = 5


@dataclass(frozen=True, slots=True)
class Run:
    """Kernels and copies of one replayed branch of a graph, one after the other.

    Attributes:
        costs_ns: Of each, int64.
        kernels: Kernel number of each, −1 for a copy; int64.
        copies: `(direction, dst, src, bytes)` of copies by place.
        sensitivities: Of each.
        actions: What each does to tensors; empty where only time counts.
    """

    costs_ns: Int64s
    kernels: Int64s
    copies: dict[int, tuple[int, int, int, int]]
    sensitivities: Sequence[float]
    actions: Sequence[Action | None]

    def at(self, place: int) -> tuple[int, float, bool]:
        """Return cost, sensitivity and whether it is a kernel."""
        is_kernel = bool(self.kernels[place] >= 0)
        return int(self.costs_ns[place]), self.sensitivities[place], is_kernel


class Queue:
    """One hardware queue: packets run one after the other, in order."""

    __slots__ = (
        "begun_ns",
        "busy_ns",
        "free_ns",
        "next_ns",
        "number",
        "packets",
        "place",
        "remaining_ns",
        "sensitivity",
        "slowdown",
        "state",
        "streams",
        "updated_ns",
        "waits_for",
    )

    def __init__(self, number: int) -> None:
        """Make an empty queue."""
        self.number = number
        self.packets: deque[Packet] = deque()
        self.state = EMPTY
        self.streams = 0
        self.next_ns = 0
        self.free_ns = 0  # end of the packet before
        self.begun_ns = 0  # start of what runs
        self.remaining_ns = 0.0  # of what runs, alone on the device, at `updated_ns`
        self.updated_ns = 0
        self.slowdown = 1.0
        self.sensitivity = -1.0  # of the kernel that runs; -1 where none does
        self.place = 0  # within a run
        self.waits_for = 0  # signals
        self.busy_ns = 0
