"""A chunk: some events of a file, cut out at event boundaries, and its decoding."""

import contextlib
from pathlib import Path
from threading import local
from typing import NamedTuple

import msgspec

from tracekit.formats.kineto.columns import Decoded, ExactEvent, NumberedEvent, columns_of
from tracekit.formats.kineto.rescue import rescued
from tracekit.formats.kineto.times import InexactTimesError

_NUMBERED_EVENTS = msgspec.json.Decoder(list[NumberedEvent])
_EXACT_EVENTS = msgspec.json.Decoder(list[ExactEvent])


class Span(NamedTuple):
    """Events that whoever decodes them reads from the file: bytes `start` to `stop`."""

    path: Path
    start: int
    stop: int

    def read(self) -> memoryview:
        """Return the events as a JSON array, valid until this thread reads its next span."""
        size = self.stop - self.start
        if len(_SCRATCH.buffer) < size + 2:
            _SCRATCH.buffer = bytearray(size + 2)
        text = memoryview(_SCRATCH.buffer)[: size + 2]
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.start)
            file.readinto(text[1:-1])
        text[0], text[-1] = b"[]"
        return text


class _Scratch(local):
    """One buffer per thread for all its spans: fresh memory would be zeroed for every chunk."""

    buffer = bytearray()


_SCRATCH = _Scratch()


Chunk = bytes | Span


def decode(chunk: Chunk) -> Decoded:
    """Return the columns of a chunk: a JSON array of events, or where in a file its events stand.

    A chunk that is not valid JSON, or too deep for a decoder, is decoded event by event
    (`rescued`).
    """
    text = chunk.read() if isinstance(chunk, Span) else chunk
    with contextlib.suppress(InexactTimesError, msgspec.DecodeError, RecursionError):
        return columns_of(_NUMBERED_EVENTS.decode(text))
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        return columns_of(_EXACT_EVENTS.decode(text))
    return rescued(bytes(text))


def merged(first: Chunk, second: Chunk) -> Chunk:
    """Return two neighbouring chunks as one."""
    if isinstance(first, Span) and isinstance(second, Span):
        return Span(first.path, first.start, second.stop)
    texts = [bytes(part.read()) if isinstance(part, Span) else part for part in (first, second)]
    return b"%b,%b" % (texts[0][:-1], texts[1][1:])
