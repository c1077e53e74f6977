"""Device and host memory of the model: addresses, reuse in stream order, bounds and faults."""

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from instrumented_runtime.devices import (
    DTYPE_BYTES,
    Buffer,
    MemoryFault,
    Place,
    RowOutOfBoundsError,
)
from instrumented_runtime.devices.virtual.config import is_count

if TYPE_CHECKING:
    from torch import Tensor

_DEVICE_HEAP = 0x7F10_0000_0000
_HOST_HEAP = 0x5600_0000_0000
# What the block sizes are rounded to, as torch's caching allocator does.
BLOCK_BYTES = 512


@dataclass(slots=True, eq=False, weakref_slot=True)
class VirtualBuffer:
    """Memory of the virtual device or its host."""

    name: str
    place: Place
    address: int
    size_bytes: int
    tensor: "Tensor | None"
    owner: "Memory"
    pool: int = 0
    block_bytes: int = 0
    storage: "Tensor | None" = None
    is_freed: bool = False

    def on_host(self) -> "Tensor":
        """Return the tensor as it is now: all that the device has done by this time is in it."""
        if self.place == "device":
            raise ValueError(f"{self.name}: is device memory; copy it to a host buffer first")
        if self.tensor is None:
            raise ValueError(f"{self.name}: the device runs without tensors (tensors=False)")
        self.owner.before_host_access()
        return self.tensor

    def bytes(self, size_bytes: int) -> "Tensor":
        """Return the first bytes, as a view."""
        assert self.storage is not None
        return self.storage[:size_bytes]


@dataclass(slots=True)
class Memory:
    """Both heaps. Freed device memory is reused by its own stream at once, by no other.

    Attributes:
        with_tensors: Whether buffers hold CPU tensors.
        before_host_access: Called before the host looks at a host buffer.
    """

    with_tensors: bool
    before_host_access: Callable[[], None]
    _device_top: int = _DEVICE_HEAP
    _host_top: int = _HOST_HEAP
    _free: dict[int, list[tuple[int, int, "Tensor | None"]]] = field(default_factory=dict)
    _places: dict[int, tuple[int, str]] = field(default_factory=dict)

    def allocate(
        self, shape: Sequence[int], dtype: str, pool: int, name: str
    ) -> tuple[VirtualBuffer, bool]:
        """Return device memory, and whether it is new (`hipMalloc`) rather than reused."""
        size_bytes = _size_bytes(shape, dtype)
        if size_bytes == 0:
            return self._empty(shape, dtype, "device", name), False
        blocks = self._free.setdefault(pool, [])
        fit = next((n for n, block in enumerate(blocks) if block[0] >= size_bytes), None)
        if fit is None:
            block_bytes = -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES
            # A hole between blocks, so that what runs beyond one is in none.
            address, self._device_top = self._device_top, self._device_top + 2 * block_bytes
            storage = _storage(block_bytes) if self.with_tensors else None
        else:
            block_bytes, address, storage = blocks.pop(fit)
        label = name or f"buffer_{(address - _DEVICE_HEAP) // BLOCK_BYTES}"
        self._places[address] = (size_bytes, label)
        tensor = _shaped(storage, shape, dtype)
        buffer = VirtualBuffer(
            label, "device", address, size_bytes, tensor, self, pool, block_bytes, storage
        )
        return buffer, fit is None

    def own(self, buffer: Buffer) -> VirtualBuffer:
        """Return a buffer that may be used.

        Raises:
            ValueError: It is another device's, or freed.
        """
        if not isinstance(buffer, VirtualBuffer) or buffer.owner is not self:
            raise ValueError(f"{buffer.name}: is not a buffer of this device")
        if buffer.is_freed:
            raise ValueError(f"{buffer.name}: is freed already")
        return buffer

    def free(self, buffer: VirtualBuffer) -> None:
        """Give device memory back to its stream.

        Raises:
            ValueError: It is host memory.
        """
        if buffer.place != "device":
            raise ValueError(f"{buffer.name}: is host memory; only device memory is freed")
        buffer.is_freed = True
        if buffer.size_bytes == 0:
            return
        block = (buffer.block_bytes, buffer.address, buffer.storage)
        insort(self._free[buffer.pool], block, key=_size_and_address)

    def host(self, shape: Sequence[int], dtype: str, place: Place, name: str) -> VirtualBuffer:
        """Return host memory."""
        size_bytes = _size_bytes(shape, dtype)
        if size_bytes == 0:
            return self._empty(shape, dtype, place, name)
        block_bytes = -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES
        address, self._host_top = self._host_top, self._host_top + block_bytes
        storage = _storage(block_bytes) if self.with_tensors else None
        label = name or f"host_{(address - _HOST_HEAP) // BLOCK_BYTES}"
        tensor = _shaped(storage, shape, dtype)
        return VirtualBuffer(
            label, place, address, size_bytes, tensor, self, 0, block_bytes, storage
        )

    def fault(
        self, kernel: str, buffers: Sequence[VirtualBuffer], error: RowOutOfBoundsError
    ) -> MemoryFault:
        """Return the fault that a store out of bounds is, with the address it went to."""
        target = error.target
        item_bytes = target.element_size()
        row_bytes = int(target.stride(0) * item_bytes)
        owner = next((buffer for buffer in buffers if _holds(buffer, target)), None)
        if owner is None:
            nearest = "none: it stored to a tensor that is no buffer of its launch"
            return MemoryFault(kernel, error.row * row_bytes, nearest)
        start = owner.address + int(target.storage_offset()) * item_bytes
        address = start + error.row * row_bytes

        def distance(place: tuple[int, tuple[int, str]]) -> int:
            start, (size_bytes, _) = place
            return max(start - address, address - (start + size_bytes) + 1, 0)

        places = {owner.address: (owner.size_bytes, owner.name), **self._places}
        start, (size_bytes, name) = min(places.items(), key=distance)
        return MemoryFault(kernel, address, f"{name} at {start:#x}, {size_bytes} bytes")

    def _empty(self, shape: Sequence[int], dtype: str, place: Place, name: str) -> VirtualBuffer:
        """Return a buffer of no bytes. Its address is null, as torch's allocators have it."""
        # By its storage a fault finds the buffer, so it has some all the same.
        storage = _storage(BLOCK_BYTES) if self.with_tensors else None
        tensor = _shaped(storage, shape, dtype)
        return VirtualBuffer(name or "empty", place, 0, 0, tensor, self, 0, 0, storage)


def _holds(buffer: VirtualBuffer, tensor: "Tensor") -> bool:
    if buffer.storage is None:
        return False
    # Not the tensor's own pointer, which is null where it is empty.
    return tensor.untyped_storage().data_ptr() == buffer.storage.data_ptr()


def _size_and_address(block: "tuple[int, int, Tensor | None]") -> tuple[int, int]:
    return block[:2]


def _size_bytes(shape: Sequence[int], dtype: str) -> int:
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"dtype: {dtype!r} is not allowed; give one of {', '.join(DTYPE_BYTES)}")
    if not all(is_count(length) for length in shape):
        raise ValueError(f"shape: {tuple(shape)} is not allowed; give lengths ≥ 0")
    return prod(shape) * DTYPE_BYTES[dtype]


def _storage(size_bytes: int) -> "Tensor":
    # Only a device with tensors needs torch.
    import torch

    return torch.zeros(size_bytes, dtype=torch.uint8)


def _shaped(storage: "Tensor | None", shape: Sequence[int], dtype: str) -> "Tensor | None":
    if storage is None:
        return None
    import torch

    size_bytes = _size_bytes(shape, dtype)
    return storage[:size_bytes].view(getattr(torch, dtype)).reshape(tuple(shape))
