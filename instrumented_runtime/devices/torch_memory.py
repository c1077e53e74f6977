"""Memory of torch, of a device or of the host, as the device interface sees it."""

from types import ModuleType
from typing import TYPE_CHECKING

from instrumented_runtime.devices import DTYPE_BYTES, Buffer, Place

if TYPE_CHECKING:
    from torch import Tensor
    from torch import dtype as Dtype


class TorchBuffer:
    """A tensor in device or host memory, until it is freed."""

    def __init__(self, tensor: "Tensor", place: Place, name: str) -> None:
        self._tensor: Tensor | None = tensor
        self.place, self.name = place, name
        self.address, self.size_bytes = tensor.data_ptr(), tensor.nbytes
        self._label = name or hex(self.address)

    @property
    def tensor(self) -> "Tensor":
        if self._tensor is None:
            raise ValueError(f"buffer {self._label} was freed")
        return self._tensor

    def on_host(self) -> "Tensor":
        if self.place == "device":
            raise ValueError(
                f"buffer {self._label} is device memory: copy it to a host buffer and read that"
            )
        return self.tensor

    def drop(self) -> None:
        """Give device memory back to torch's allocator."""
        if self.place != "device":
            raise ValueError(f"buffer {self._label} is host memory: only device memory is freed")
        if self._tensor is None:
            raise ValueError(f"buffer {self._label} was freed already")
        self._tensor = None


def own_buffer(buffer: Buffer) -> TorchBuffer:
    if not isinstance(buffer, TorchBuffer):
        raise TypeError(f"buffer {buffer.name!r} is a {type(buffer).__name__} of another device")
    return buffer


def copied_bytes(
    torch: ModuleType, destination: Buffer, source: Buffer, size_bytes: int | None
) -> "tuple[Tensor, Tensor]":
    """Return the two sides of a copy, `[size_bytes] uint8` each, the destination first."""
    if "device" not in (destination.place, source.place):
        raise ValueError(
            f"{source.name!r} and {destination.name!r} are both host memory: the host copies that"
        )
    most = min(destination.size_bytes, source.size_bytes)
    count = most if size_bytes is None else size_bytes
    if not 0 <= count <= most:
        raise ValueError(
            f"cannot copy {count} bytes from {source.name!r} ({source.size_bytes} bytes) "
            f"to {destination.name!r} ({destination.size_bytes} bytes)"
        )
    sides = (own_buffer(side).tensor for side in (destination, source))
    to, of = (tensor.reshape(-1).view(torch.uint8)[:count] for tensor in sides)
    return to, of


def torch_dtype(torch: ModuleType, dtype: str) -> "Dtype":
    """Return torch's own for a name of `DTYPE_BYTES`."""
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"no dtype {dtype!r}: it is one of {', '.join(DTYPE_BYTES)}")
    found: Dtype = getattr(torch, dtype)
    return found
