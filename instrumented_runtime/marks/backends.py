"""Where marker text goes: roctx, NVTX, or PyTorch's profiler. Nothing is loaded before it is named.

Every backend keeps ranges per thread: a range is popped on the thread that pushed it. The module
needs the standard library alone, so that hooks can load it by its file in a server that is not
ours.
"""

from __future__ import annotations

import ctypes
import os
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from instrumented_runtime.devices import Markers


class BackendError(Exception):
    """Markers were asked for that cannot be written here."""


# By soname first: it finds the copy that rocprofv3 has already loaded, and some packages ship no
# other name.
ROCTX = ("librocprofiler-sdk-roctx.so.1", "librocprofiler-sdk-roctx.so")
# rocprofv3 does not see these; rocprof, rocprofv2 and rocm-profile-data do.
OLD_ROCTX = ("libroctx64.so.4", "libroctx64.so")


class _Roctx:
    """ROCm's marker library."""

    def __init__(self) -> None:
        library, name = loaded_library(ROCTX + OLD_ROCTX)
        if name in OLD_ROCTX:
            warnings.warn(
                f"markers go to the old {name}, which rocprofv3 does not record; "
                f"{ROCTX[1]} is not there",
                RuntimeWarning,
                stacklevel=3,
            )
        self._mark, self._push = library.roctxMarkA, library.roctxRangePushA
        self._pop = library.roctxRangePop
        for function in (self._mark, self._push):
            function.argtypes = [ctypes.c_char_p]
        self._mark.restype = None

    def mark(self, text: str) -> None:
        self._mark(text.encode())

    def push(self, text: str) -> None:
        self._push(text.encode())

    def pop(self) -> None:
        self._pop()


def loaded_library(names: tuple[str, ...]) -> tuple[ctypes.PyDLL, str]:
    """Return the first library of ROCm there is of these names, and its name.

    Raises:
        BackendError: There is none.
    """
    folder = Path(os.environ.get("ROCM_PATH", "/opt/rocm")) / "lib"
    for name in names:
        for path in (name, str(folder / name)):
            try:
                # PyDLL keeps the interpreter lock: to give it up for so short a call would let
                # another thread in between a marker and the launch that it is about.
                return ctypes.PyDLL(path), name
            except OSError:
                continue
    raise BackendError(f"no {ROCTX[1]} and no {OLD_ROCTX[1]}, neither by name nor in {folder}")


class _RecordFunction:
    """PyTorch's profiler, which knows no instants: they are ranges that end at once."""

    def __init__(self) -> None:
        try:
            import torch
        except ImportError as error:
            raise BackendError(f"no torch ({error})") from None
        # What is behind `record_function`, at a third of its cost; no promise that it stays.
        quick = "_record_function_with_args"
        self._begin: Callable[[str], object] = getattr(torch.autograd, f"{quick}_enter", _entered)
        self._end: Callable[[Any], object] = getattr(torch.autograd, f"{quick}_exit", _left)
        self._open = threading.local()

    def mark(self, text: str) -> None:
        self._end(self._begin(text))

    def push(self, text: str) -> None:
        self._open.__dict__.setdefault("ranges", []).append(self._begin(text))

    def pop(self) -> None:
        self._end(self._open.ranges.pop())


def _entered(text: str) -> AbstractContextManager[object]:
    from torch.profiler import record_function

    entered = record_function(text)
    entered.__enter__()
    return entered


def _left(entered: AbstractContextManager[object]) -> None:
    entered.__exit__(None, None, None)


class _Nvtx:
    """NVIDIA's markers, in the default domain."""

    _mark: Callable[[str], object]
    _push: Callable[[str], object]
    _pop: Callable[[], object]

    def __init__(self) -> None:
        # A CUDA build of torch hands the text over as it is. The nvtx package registers each
        # distinct text and keeps it until the process ends, so it comes second.
        if _torch_is_for_cuda():
            from torch.cuda import nvtx as torch_nvtx

            self._mark, self._push = torch_nvtx.mark, torch_nvtx.range_push
            self._pop = torch_nvtx.range_pop
            return
        try:
            import nvtx
        except ImportError as error:
            raise BackendError(f"no CUDA build of torch, no nvtx package ({error})") from None
        self._mark, self._push, self._pop = nvtx.mark, nvtx.push_range, nvtx.pop_range

    def mark(self, text: str) -> None:
        self._mark(text)

    def push(self, text: str) -> None:
        self._push(text)

    def pop(self) -> None:
        self._pop()


def _torch_is_for_cuda() -> bool:
    """Whether NVTX takes torch's markers; a ROCm build sends those of that name to roctx."""
    try:
        import torch
    except ImportError:
        return False
    return torch.version.cuda is not None


_BACKENDS: dict[str, Callable[[], Markers]] = {
    "roctx": _Roctx,
    "nvtx": _Nvtx,
    "record_function": _RecordFunction,
}
BACKEND_NAMES = ("auto", *_BACKENDS, "off")


def backend_named(name: str) -> Markers | None:
    """Return a backend by its name, or None for `off`.

    `auto` asks who is likely to listen: nvtx if `NVTX_INJECTION64_PATH` names a profiler's library,
    else roctx if a library of it can be loaded, else `record_function` if torch can be imported,
    else nothing. It cannot know of PyTorch's profiler on a machine with ROCm: name
    `record_function` there.

    Raises:
        BackendError: There is none of that name, or what it needs is missing.
    """
    if name == "off":
        return None
    if name == "auto":
        return _first_there()
    if name not in _BACKENDS:
        raise BackendError(f"no markers are called {name!r}; choose {_choices()}")
    try:
        return _BACKENDS[name]()
    except BackendError as error:
        raise BackendError(f"markers {name!r}: {error}; choose {_choices()}") from None


def _first_there() -> Markers | None:
    nvtx_first = ["nvtx"] if os.environ.get("NVTX_INJECTION64_PATH") else []
    for name in [*nvtx_first, "roctx", "record_function"]:
        try:
            return _BACKENDS[name]()
        except BackendError:
            continue
    return None


def _choices() -> str:
    return f"{', '.join(BACKEND_NAMES[:-1])} or {BACKEND_NAMES[-1]}"
