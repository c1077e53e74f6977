"""PyTorch's streams and events: which record each wait waits for, as markers.

`Stream.record_event`, `wait_event` and `wait_stream` go through the methods of `Event`, so those
are enough. A stream's own synchronisation is a call that says in any trace what it waits for.
"""

import sys
from collections.abc import Callable
from typing import Any

from .process import Process
from .targets import Function, Hook, Target
from .torch_copies import COPIES

# Not torch.cuda, which is imported before what the hooks need of torch.
_MODULE = "torch"


def _record(process: Process, function: Function, _text: str) -> Function:
    """Mark a record after the call: it counts late, never early."""
    gate, torch = process.gate, sys.modules["torch"]
    is_compiling, say = torch.compiler.is_compiling, _saying(process, torch, "record")

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not gate[0]:
            return function(*args, **kwargs)
        result = function(*args, **kwargs)
        process.guarded(say, args[0], args[1] if len(args) > 1 else kwargs.get("stream"))
        return result

    return call


def _wait(process: Process, function: Function, _text: str) -> Function:
    """Mark a wait before the call: it counts early, never late."""
    gate, torch = process.gate, sys.modules["torch"]
    is_compiling, say = torch.compiler.is_compiling, _saying(process, torch, "wait")

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not gate[0]:
            return function(*args, **kwargs)
        process.guarded(say, args[0], args[1] if len(args) > 1 else kwargs.get("stream"))
        return function(*args, **kwargs)

    return call


def _synchronize(process: Process, function: Function, _text: str) -> Function:
    """Mark that the host has waited, once it has."""
    gate, torch = process.gate, sys.modules["torch"]
    is_compiling = torch.compiler.is_compiling

    def say(event: Any) -> None:
        if event.cuda_event:
            process.markers.say("sync", event.cuda_event)

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not gate[0]:
            return function(*args, **kwargs)
        result = function(*args, **kwargs)
        process.guarded(say, args[0])
        return result

    return call


def _set_stream(process: Process, function: Function, _text: str) -> Function:
    """Remember streams that become current, window or not: they live when one opens."""
    gate, torch = process.gate, sys.modules["torch"]
    is_compiling = torch.compiler.is_compiling

    def say(stream: Any) -> None:
        if not torch.cuda.is_current_stream_capturing():
            process.streams.declare(stream)

    known, see = process.streams.handles, process.streams.see

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return function(*args, **kwargs)
        result = function(*args, **kwargs)
        stream = args[0] if args else kwargs.get("stream")
        if stream is None:
            pass
        elif gate[0]:
            process.guarded(say, stream)
        else:  # as `guarded`, without the price of calls for a stream that is known
            try:
                handle = stream.cuda_stream
                if not handle or handle not in known:
                    see(stream)
            except Exception as problem:
                process.report.problem(f"set_stream: {problem!r}")
        return result

    return call


def _saying(process: Process, torch: Any, verb: str) -> Callable[[Any, Any], None]:
    """Return what marks that an event is recorded in a stream, or waited for there."""

    def say(event: Any, stream: Any) -> None:
        # An event without a handle was never recorded: nothing waits for it.
        if not torch.cuda.is_current_stream_capturing() and event.cuda_event:
            handle = process.streams.declare(_stream(torch, stream))
            process.markers.say(verb, event.cuda_event, stream=handle)

    return say


def _stream(torch: Any, stream: Any) -> Any:
    """Return a stream with a handle: the current one for None."""
    if stream is None:
        return torch.cuda.current_stream()
    if hasattr(stream, "cuda_stream"):
        return stream
    return torch.cuda.Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )


HOOK = Hook(
    "torch_streams",
    (
        Target(_MODULE, "cuda.Event.record", "self stream", _record),
        Target(_MODULE, "cuda.Event.wait", "self stream", _wait),
        Target(_MODULE, "cuda.Event.synchronize", "self", _synchronize),
        Target(_MODULE, "cuda.set_stream", "stream", _set_stream),
        *COPIES,
    ),
)
