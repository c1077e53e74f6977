"""Markers: short text in a trace that says what the host is about to do, or has done.

The only module that knows roctx, NVTX and `record_function`. The text is what tracekit reads;
`docs/markers.md` is the contract.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Literal

from instrumented_runtime.devices import Buffer, Event, Markers, Stream
from instrumented_runtime.marks.backends import (
    BACKEND_NAMES,
    BackendError,
    backend_named,
)
from instrumented_runtime.marks.grammar import Statement, Value, clean, parse, write

__all__ = [
    "BACKEND_NAMES",
    "BackendError",
    "Marks",
    "Statement",
    "backend_named",
    "clean",
    "parse",
    "write",
]

# 7 declared buffers of 64-bit addresses fit one text beside the longest head.
_DECLARED_PER_TEXT = 7


class _NoRange:
    """Quicker than `contextlib.nullcontext`."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        pass


_NO_RANGE = _NoRange()


class _Range:
    __slots__ = ("_backend", "_text")

    def __init__(self, backend: Markers, text: str) -> None:
        self._backend, self._text = backend, text

    def __enter__(self) -> None:
        self._backend.push(self._text)

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._backend.pop()


class Marks:
    """Writes statements to a backend; a device is one. Without a backend it does nothing.

    Buffers are told apart by their address, streams and events by their handle.
    """

    __slots__ = ("_backend",)

    def __init__(self, backend: Markers | None = None) -> None:
        self._backend = backend

    def write_to(self, backend: Markers | None) -> None:
        """Write to another backend from now on; ranges that are open end where they began."""
        self._backend = backend

    def stream(self, stream: Stream, device: int = 0) -> None:
        """Say that a stream lives: when it is made, and for each when recording begins."""
        if self._backend is not None:
            self._mark(
                "stream",
                stream.handle,
                flags=stream.flags,
                device=device,
                name=clean(stream.name) or None,
            )

    def step(
        self,
        number: int,
        *,
        kind: str = "",
        batch_size: int | None = None,
        tokens: int | None = None,
        waiting: int | None = None,
        free: int | None = None,
    ) -> AbstractContextManager[None]:
        """Return the range of one engine step, to be entered once.

        Args:
            number: Its number.
            kind: What it computes: prefill, decode, …
            batch_size: Requests in it.
            tokens: How many it yields.
            waiting: Requests that it leaves waiting for a slot.
            free: Slots that it leaves free.
        """
        if self._backend is None:
            return _NO_RANGE
        return _Range(
            self._backend,
            _text(
                "step",
                number,
                kind=clean(kind) or None,
                bs=batch_size,
                tokens=tokens,
                waiting=waiting,
                free=free,
            ),
        )

    def range(self, name: str) -> AbstractContextManager[None]:
        """Return the range of one stage within a step, to be entered once; its text is the name."""
        return _NO_RANGE if self._backend is None else _Range(self._backend, name)

    def buffer(self, buffer: Buffer) -> None:
        """Say where a buffer lies: when it is made, and for each when recording begins."""
        if self._backend is not None:
            self._mark(
                "buffer",
                buffer.address,
                addr=buffer.address,
                size=buffer.size_bytes,
                name=clean(buffer.name) or None,
                place=buffer.place,
            )

    def use(self, buffer: Buffer, mode: Literal["r", "w"], stream: Stream | None = None) -> None:
        """Say that this thread's next launch or copy, to a stream, reads or writes a buffer."""
        if self._backend is not None:
            handle = None if stream is None else stream.handle
            self._mark("use", buffer.address, mode=mode, stream=handle)

    def graph(
        self, graph: int, *, reads: Iterable[Buffer] = (), writes: Iterable[Buffer] = ()
    ) -> None:
        """Say what a captured graph reads and writes, in as many statements as it takes.

        Args:
            graph: The writer's own number for it, or its handle; a new capture needs a new one.
            reads: Buffers it reads.
            writes: Buffers it writes.
        """
        if self._backend is None:
            return
        accesses = [("r", buffer.address) for buffer in reads]
        accesses += [("w", buffer.address) for buffer in writes]
        for first in range(0, len(accesses) or 1, _DECLARED_PER_TEXT):
            some = tuple(accesses[first : first + _DECLARED_PER_TEXT])
            self._mark("graph", graph, declares=some)

    def replay(self, graph: int, stream: Stream | None = None) -> None:
        """Say that the next graph launch of this thread launches this graph into a stream."""
        if self._backend is not None:
            self._mark("replay", graph, stream=None if stream is None else stream.handle)

    def record(self, event: Event, stream: Stream) -> None:
        """Say that an event has been recorded in a stream; after the call."""
        if self._backend is not None:
            self._mark("record", event.handle, stream=stream.handle)

    def wait(self, event: Event, stream: Stream) -> None:
        """Say that a stream is made to wait for an event; before the call."""
        if self._backend is not None:
            self._mark("wait", event.handle, stream=stream.handle)

    def sync(self, event: Event) -> None:
        """Say that the host has waited for an event; after the call returned."""
        if self._backend is not None:
            self._mark("sync", event.handle)

    def _mark(self, verb: str, subject: int, **values: Value | None) -> None:
        if self._backend is not None:
            self._backend.mark(_text(verb, subject, **values))


# A step says the same of the same buffers, events and streams as the one before.
@lru_cache(maxsize=4096)
def _text(verb: str, subject: int, **values: Value | None) -> str:
    present = {key: value for key, value in values.items() if value is not None}
    return write(Statement(verb, subject, present))
