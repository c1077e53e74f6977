"""PyTorch's copies between host and device, with addresses; asked for by TRACEKIT_HOOK_COPIES.

A `use` speaks of the next launch or copy, so it is written only where the call is sure to make
exactly one: another type or layout on the way takes launches of its own, and then only where the
buffers lie is said.
"""

import sys
from collections.abc import Callable
from typing import Any

from .process import Process
from .targets import Function, Maker, Target

# From tensor, arguments and keywords: what the call copies, with mode; "" says only where it lies.
# Empty for what stays on one side.
Uses = list[tuple[Any, str]]
Found = Callable[[Any, tuple[Any, ...], dict[str, Any]], Uses]


def _copies(found: Found) -> Maker:
    def make(process: Process, function: Function, _text: str) -> Function:
        gate, torch = process.gate, sys.modules["torch"]
        is_compiling = torch.compiler.is_compiling

        def say(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            uses = found(args[0], args[1:], kwargs)
            # Asked only now: in a process that uses no GPU, to ask would begin to use it.
            if not uses or torch.cuda.is_current_stream_capturing():
                return
            stream = process.streams.declare(of) if (of := _stream(torch, uses)) else None
            for tensor, mode in uses:
                if mode:
                    process.buffers.use(tensor, mode, stream=stream)
                else:
                    process.buffers.declare(tensor)

        def call(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not gate[0]:
                return function(*args, **kwargs)
            process.guarded(say, args, kwargs)
            return function(*args, **kwargs)

        return call

    return make


def _stream(torch: Any, uses: Uses) -> Any:
    """Return the stream that a copy goes to, None where the tensors do not tell.

    Else the trace cannot say which of its streams a handle is whose stream does nothing but copy.
    """
    devices = {tensor.device for tensor, _ in uses if tensor.is_cuda}
    return torch.cuda.current_stream(devices.pop()) if len(devices) == 1 else None


def _copy_(tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Uses:
    source = args[0] if args else kwargs["src"]
    if not (tensor.is_cuda or source.is_cuda):
        return []
    is_plain = (
        tensor.dtype == source.dtype
        and tensor.shape == source.shape
        and tensor.is_contiguous()
        and source.is_contiguous()
    )
    return [(source, "r" if is_plain else ""), (tensor, "w" if is_plain else "")]


def _read(tensor: Any, *_rest: object) -> Uses:
    return [(tensor, "r")] if tensor.is_cuda and tensor.is_contiguous() else []


def _to(tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Uses:
    torch = sys.modules["torch"]
    if args and isinstance(args[0], torch.Tensor):
        device, dtype = args[0].device, args[0].dtype
    else:
        arguments = {key: value for key, value in kwargs.items() if key != "copy"}
        device, dtype = torch._C._nn._parse_to(*args[:3], **arguments)[:2]
    kinds = {tensor.device.type, tensor.device.type if device is None else device.type}
    is_plain = dtype in (None, tensor.dtype) and tensor.is_contiguous()
    return [(tensor, "r")] if kinds == {"cpu", "cuda"} and is_plain else []


_FOUND: dict[str, Found] = {"copy_": _copy_, "cpu": _read, "item": _read, "to": _to}
COPIES = tuple(
    Target("torch", f"Tensor.{name}", make=_copies(found), option="TRACEKIT_HOOK_COPIES")
    for name, found in _FOUND.items()
)
