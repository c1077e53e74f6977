"""What a copy moves, what it costs and what it does to tensors."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from instrumented_runtime.devices.virtual.config import Timing, is_count
from instrumented_runtime.devices.virtual.memory import VirtualBuffer
from instrumented_runtime.devices.virtual.packets import Action

if TYPE_CHECKING:
    from torch import Tensor

_DIRECTIONS = {(False, True): 1, (True, False): 2, (True, True): 3}


class Copy(NamedTuple):
    """One copy: `row` is its direction, addresses and bytes as the recorder wants them."""

    destination: VirtualBuffer
    source: VirtualBuffer
    row: tuple[int, int, int, int]
    cost_ns: int

    @property
    def is_pageable(self) -> bool:
        return "pageable" in {self.destination.place, self.source.place}

    @property
    def is_inside_device(self) -> bool:
        return self.destination.place == self.source.place == "device"

    @property
    def arguments(self) -> tuple[int, int, int, int]:
        """As HIP's calls have them: destination, source, bytes, kind."""
        direction, *places = self.row
        return (places[0], places[1], places[2], direction)

    def action(self) -> Action | None:
        """Return what moves the bytes when the copy runs; None where only time counts."""
        if self.source.tensor is None:
            return None
        return _moving(self.destination, lambda: self.source.bytes(self.row[3]), self.row[3])

    def staged_action(self) -> Action | None:
        """Take the bytes now; return what hands them over when the copy runs."""
        if self.source.tensor is None:
            return None
        taken = self.source.bytes(self.row[3]).clone()
        return _moving(self.destination, lambda: taken, self.row[3])


def copy_between(
    destination: VirtualBuffer, source: VirtualBuffer, size_bytes: int | None, timing: Timing
) -> Copy:
    """Return the copy of the first bytes, of all that fit if None.

    Raises:
        ValueError: Both sides are host memory, or it is longer than one of them.
    """
    is_device = (source.place == "device", destination.place == "device")
    if is_device not in _DIRECTIONS:
        raise ValueError("copy: both sides are host memory; one has to be device memory")
    most = min(destination.size_bytes, source.size_bytes)
    size_bytes = most if size_bytes is None else size_bytes
    if not is_count(size_bytes) or size_bytes > most:
        raise ValueError(f"size_bytes: {size_bytes} is not allowed; give 0 to {most}")
    cost_ns = max(timing.copy_ns + round(size_bytes / timing.copy_bytes_per_ns), 1)
    row = (_DIRECTIONS[is_device], destination.address, source.address, size_bytes)
    return Copy(destination, source, row, cost_ns)


def _moving(destination: VirtualBuffer, source: "Callable[[], Tensor]", size_bytes: int) -> Action:
    return lambda: destination.bytes(size_bytes).copy_(source())
