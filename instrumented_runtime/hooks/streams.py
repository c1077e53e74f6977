"""Streams of PyTorch that were seen, declared as markers in each window.

Handles, not objects, are remembered: PyTorch makes a new object for the same stream as often as it
is asked, and never destroys a stream of its pools.
"""

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .markers import Markers

_NON_BLOCKING = 1
Key = tuple[int, int]


class Streams:
    """Streams by device and handle, each declared once per window before its first marker.

    Attributes:
        handles: Of all that something has used; the null stream of each device is 0.
    """

    def __init__(self, gate: list[int], markers: Markers, problem: Callable[[str], None]) -> None:
        """Declare to `markers` while `gate` is open."""
        self._gate, self._markers, self._problem = gate, markers, problem
        self._names: dict[int, str] = {}
        self._flags: dict[Key, str | None] = {}
        self._seen: dict[Key, None] = {}
        self.handles: set[int] = set()
        self._declared: set[Key] = set()
        self._window = 0

    def see(self, stream: Any) -> None:
        """Remember a stream that something uses; it is declared when a window is open."""
        key: Key = (stream.device_index, stream.cuda_stream)
        self._seen[key] = None
        self.handles.add(key[1])

    def name(self, stream: Any, name: str) -> None:
        """Call a stream something; the last name counts."""
        handle = getattr(stream, "cuda_stream", None)
        if handle is not None:
            self._names[handle] = name
            self.see(stream)

    def declare(self, stream: Any) -> int:
        """Declare a stream, and in a new window all that were seen; return its handle."""
        key: Key = (stream.device_index, stream.cuda_stream)
        if self._window != self._gate[0]:
            self._window = self._gate[0]
            self._declared.clear()
            for seen in list(self._seen):
                self._say(seen)
        if key not in self._declared:
            self._seen[key] = None
            self._say(key)
        return key[1]

    def _say(self, key: Key) -> None:
        self._declared.add(key)
        device, handle = key
        if key not in self._flags:
            self._flags[key] = self._asked(handle)
        flags = self._flags[key]
        if flags is not None:
            name = self._names.get(handle)
            self._markers.say("stream", handle, flags=flags, device=device, name=name)

    def _asked(self, handle: int) -> str | None:
        # Of the runtime, which does not touch the device for it: a stream that another library
        # made may be blocking, and nothing in Python says so.
        if handle == 0:
            return "null"
        try:
            flags = ctypes.c_uint()
            status = _flags_of()(ctypes.c_void_p(handle), ctypes.byref(flags))
        except (OSError, AttributeError) as problem:
            self._problem(f"flags of streams are unknown: {problem}")
            return None
        if status:
            return None
        return "nonblocking" if flags.value & _NON_BLOCKING else "blocking"


def _flags_of() -> Any:
    torch: Any = sys.modules["torch"]
    prefix = "hip" if torch.version.hip else "cuda"
    # A symbol looked up in torch's library is found in what that links: the runtime torch uses.
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / f"libc10_{prefix}.so"))
    return library[f"{prefix}StreamGetFlags"]
