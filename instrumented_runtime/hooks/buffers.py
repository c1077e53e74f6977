"""Tensors as buffers in markers: where they lie, and who is about to read or write them."""

from typing import Any

from .markers import Markers

# Of caching allocators addresses are few; this bounds what a program can do to us.
_MOST_REMEMBERED = 65_536


class Buffers:
    """Declares each tensor once per window, again when something else lies at its address."""

    def __init__(self, gate: list[int], markers: Markers) -> None:
        """Declare to `markers` while `gate` is open."""
        self._gate, self._markers = gate, markers
        self._declared: dict[int, tuple[int, str | None]] = {}
        self._window = 0

    def declare(self, tensor: Any, name: str | None = None) -> int | None:
        """Say where a tensor lies; return its address, None of one without memory.

        A tensor declared without a name keeps the one it had at that address and size.
        """
        if self._window != self._gate[0] or len(self._declared) > _MOST_REMEMBERED:
            self._window = self._gate[0]
            self._declared.clear()
        address: int = tensor.data_ptr()
        size = tensor.numel() * tensor.element_size()
        if not address or not size:
            return None
        known = self._declared.get(address)
        if known is None or known[0] != size or (name is not None and known[1] != name):
            self._declared[address] = (size, name)
            self._markers.say(
                "buffer", address, addr=address, size=size, name=name, place=_place(tensor)
            )
        return address

    def use(
        self, tensor: Any, mode: str, name: str | None = None, stream: int | None = None
    ) -> None:
        """Say that the thread's next launch or copy, to that stream, reads or writes a tensor."""
        address = self.declare(tensor, name)
        if address is not None:
            self._markers.say("use", address, mode=mode, stream=stream)


def _place(tensor: Any) -> str:
    if tensor.device.type != "cpu":
        return "device"
    return "pinned" if tensor.is_pinned() else "pageable"
