"""Copies between host and device whose host side cannot be touched at the wrong time."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from instrumented_runtime.devices import Buffer, Stream
from instrumented_runtime.marks.marked_device import MarkedDevice

if TYPE_CHECKING:
    from torch import Tensor


class HostCopy:
    """A copy from the device into pinned memory, which only `wait` gives out.

    On a device without tensors `wait` waits all the same, and gives nothing.
    """

    def __init__(
        self, device: MarkedDevice, shape: Sequence[int], name: str, *, has_tensors: bool
    ) -> None:
        """Make room for `shape` of int64 on the host."""
        self._device, self._has_tensors = device, has_tensors
        self._pinned = device.pinned(shape, "int64", name)
        self._done = device.event()
        self._is_under_way = False

    def start(self, source: Buffer, stream: Stream) -> None:
        """Queue the copy of a buffer to the beginning of what `wait` gives, as far as it fits.

        Raises:
            RuntimeError: Nobody has waited for the copy before, which would be overwritten.
        """
        if self._is_under_way:
            raise RuntimeError("a copy to the host is started before the last one was waited for")
        self._is_under_way = True
        self._device.copy_async(self._pinned, source, stream)
        self._device.record(self._done, stream)

    def wait(self) -> "Tensor | None":
        """Block until the copy is done; return it, `shape` int64, host; until the next `start`."""
        self._device.sync(self._done)
        self._is_under_way = False
        # Complete: the host has waited for the copy.
        return self._pinned.on_host() if self._has_tensors else None


class Upload:
    """A copy from pinned memory to the device; whoever fills it knows that the last one is done.

    Attributes:
        target: `shape` int64, device.
    """

    def __init__(
        self, device: MarkedDevice, shape: Sequence[int], name: str, *, has_tensors: bool
    ) -> None:
        """Make room for `shape` of int64, on both sides."""
        self._device, self._has_tensors = device, has_tensors
        self.target = device.allocate(shape, "int64", name)
        self._pinned = device.pinned(shape, "int64", f"{name}_host")

    def start(self, values: Sequence[Sequence[int]] | Sequence[int], stream: Stream) -> None:
        """Write values to the first elements, 0 to all others, and queue the copy."""
        if self._has_tensors:
            host = self._pinned.on_host()
            host.zero_()
            if len(values):
                filled = host.new_tensor(values)
                host[tuple(slice(length) for length in filled.shape)] = filled
        self._device.copy_async(self.target, self._pinned, stream)
