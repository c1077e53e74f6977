"""The GPU runtime of an installed torch: whether there is one, and calls that torch hides."""

import ctypes
import importlib
from pathlib import Path
from types import ModuleType

_COPY_KIND_DEFAULT = 4  # the address says which side is device memory
_ARGUMENTS = {
    "StreamCreateWithPriority": (ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint, ctypes.c_int),
    "Memcpy": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    "GetLastError": (),
    "GetErrorString": (ctypes.c_int,),
}


class RuntimeLibrary:
    """The runtime library that an installed torch itself uses, on the current device."""

    def __init__(self, torch: ModuleType) -> None:
        """Find it.

        Raises:
            RuntimeError: This build of torch does not link it as a shared library.
        """
        self._prefix = "hip" if torch.version.hip else "cuda"
        # A symbol looked up in torch's library is found in what that links, also where a second
        # runtime library is loaded.
        path = Path(torch.__file__ or "").parent / "lib" / f"libc10_{self._prefix}.so"
        try:
            library = ctypes.CDLL(str(path))
            self._functions = {name: library[self._prefix + name] for name in _ARGUMENTS}
        except (OSError, AttributeError) as problem:
            raise RuntimeError(
                f"{path}: {problem}; use a torch build that links the {self._prefix} runtime as a "
                "shared library, as its wheels do"
            ) from problem
        for name, arguments in _ARGUMENTS.items():
            self._functions[name].argtypes = arguments
        self._functions["GetErrorString"].restype = ctypes.c_char_p

    def new_stream(self, priority: int, *, is_blocking: bool) -> int:
        """Return the handle of a stream, which nothing destroys."""
        handle = ctypes.c_void_p()
        self._call("StreamCreateWithPriority", ctypes.byref(handle), int(not is_blocking), priority)
        return handle.value or 0

    def copy(self, destination: int, source: int, size_bytes: int) -> None:
        """Copy on the null stream."""
        self._call("Memcpy", destination, source, size_bytes, _COPY_KIND_DEFAULT)

    def _call(self, name: str, *arguments: object) -> None:
        status = self._functions[name](*arguments)
        if status:
            self._functions["GetLastError"]()  # or torch would report it at its next launch
            text = self._functions["GetErrorString"](status).decode()
            raise RuntimeError(f"{self._prefix}{name}: {text}")


def torch_with_gpu(index: int) -> ModuleType:
    """Return torch, ready for a GPU.

    Raises:
        RuntimeError: There is no torch, or it sees no such GPU.
    """
    remedy = "use a CUDA or ROCm build of it on a machine with a GPU, or the virtual device"
    try:
        torch = importlib.import_module("torch")
    except ImportError as problem:
        raise RuntimeError(f"torch cannot be imported ({problem}): {remedy}") from problem
    if not torch.cuda.is_available():
        raise RuntimeError(f"torch {torch.__version__} sees no GPU: {remedy}")
    if not 0 <= index < torch.cuda.device_count():
        raise RuntimeError(f"no GPU {index}: torch sees {torch.cuda.device_count()}, from 0 on")
    torch.cuda.init()
    return torch
