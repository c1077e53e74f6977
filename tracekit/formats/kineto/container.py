"""The file around the events: where `traceEvents` begins and ends, cut into chunks on the way.

Memory is bounded by the chunk size, whatever the size of the file, gzip or not.
"""

import contextlib
import io
import json
import re
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from tracekit.errors import UnreadableTrace
from tracekit.formats.kineto.chunk import Chunk, Span
from tracekit.formats.kineto.cuts import NO_OBJECT, first_key, separator_before
from tracekit.formats.kineto.depth import shallow

CHUNK_BYTES = 8 << 20
HEAD_BYTES = 1 << 18
_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_EVENTS_KEY = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*(?=\[)')
_NO_OBJECTS = rb"(?:" + NO_OBJECT + rb"(?:\s*,\s*" + NO_OBJECT + rb")*)?"
_ARRAY_WITHOUT_OBJECTS = re.compile(rb"\[\s*" + _NO_OBJECTS + rb"\s*\]")
_END_OF_ARRAY = re.compile(rb"\}(?:\s*,\s*" + NO_OBJECT + rb')*\s*\](?=\s*(?:,\s*"|\}|$))')
_CUT_WINDOW_BYTES = 1 << 16
_DAMAGE_STEP_BYTES = 256
_LONGEST_HEAD_BYTES = 64 << 20


@dataclass
class Container:
    """What surrounds the events; complete once its chunks have been read.

    Attributes:
        is_object: The events stand in an object; False for a bare array of events.
        metadata: Top-level entries besides `traceEvents`.
        has_end: The file ends as JSON ends; False when the writer died or the file was cut.
        has_partial_event: The file ends inside an event.
        is_damaged: The compressed data is damaged; nothing behind the damage was read.
    """

    is_object: bool = True
    metadata: dict[str, Any] = field(default_factory=dict)
    has_end: bool = True
    has_partial_event: bool = False
    is_damaged: bool = False


def chunks(path: Path, container: Container, report: Callable[[int], None]) -> Iterator[Chunk]:
    """Yield the events of a file in chunks cut at event boundaries; fill `container` on the way.

    A cut in the middle of an event (between two objects nested in it) is possible but shows: the
    texts on both its sides fail to decode, and decode once `merged`.

    Args:
        path: The file, plain or gzip.
        container: Receives the metadata, and whether the file is whole.
        report: Called with the bytes of the file read so far.

    Raises:
        UnreadableTrace: There are no `traceEvents`.
    """
    with path.open("rb") as file:
        is_gzip = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        file.seek(0)
        source = blocks(file, container) if is_gzip else iter(lambda: file.read(HEAD_BYTES), b"")
        opening = _with_first_key(_opened(path, source, container), source)
        key = first_key(opening)
        if key is None:
            yield _without_events(opening + b"".join(source), container)
            return
        separator = separator_before(key)
        if is_gzip:
            last = yield from _cut_stream(opening, source, separator, lambda: report(file.tell()))
        else:
            last = yield from _cut_file(path, file, len(opening), separator, report)
        yield _ended(last, separator, container)
        report(file.tell())


def _cut_stream(
    buffer: bytes,
    source: Iterator[bytes],
    separator: re.Pattern[bytes],
    report: Callable[[], None],
) -> Generator[Chunk, None, bytes]:
    """Yield chunks of a stream; return the text from the last cut on, an array without its end."""
    for block in source:
        buffer += block
        cut = _last_match(separator, buffer) if len(buffer) >= CHUNK_BYTES else None
        if cut:
            report()
            yield buffer[: cut.start()] + b"]"
            buffer = b"[" + buffer[cut.end() :]
    return buffer


def _cut_file(
    path: Path,
    file: BinaryIO,
    opening_bytes: int,
    separator: re.Pattern[bytes],
    report: Callable[[int], None],
) -> Generator[Chunk, None, bytes]:
    """Yield spans of a file, reading only around the cuts; return the text from the last cut on."""
    position = file.tell() - opening_bytes + 1
    while cut := _next_cut(separator, file, position + CHUNK_BYTES):
        report(cut[0])
        yield Span(path, position, cut[0])
        position = cut[1]
    file.seek(position)
    return b"[" + file.read()


def first_bytes(path: Path, count: int) -> bytes:
    """Return the first decompressed bytes of a file."""
    with path.open("rb") as file:
        text = file.read(count)
    if text.startswith(_GZIP_MAGIC):
        text = next(blocks(io.BytesIO(text), Container()), b"")
    return text[:count]


def blocks(file: BinaryIO, container: Container) -> Iterator[bytes]:
    """Yield the decompressed bytes of a gzip file in blocks of at most `CHUNK_BYTES`.

    A stream that ends early or is damaged yields what came before and clears `has_end`; damage
    sets `is_damaged` too.
    """
    inflate = zlib.decompressobj(wbits=31)
    while packed := (
        inflate.unconsumed_tail or inflate.unused_data.lstrip(b"\0") or file.read(1 << 18)
    ):
        if inflate.eof:  # a further gzip member begins
            inflate = zlib.decompressobj(wbits=31)
        before = inflate.copy()
        try:
            yield inflate.decompress(packed, CHUNK_BYTES)
        except zlib.error:
            container.has_end, container.is_damaged = False, True
            yield _until_damage(before, packed)
            return
    container.has_end = inflate.eof


def _until_damage(
    inflate: "zlib._Decompress", packed: bytes, step: int = _DAMAGE_STEP_BYTES
) -> bytes:
    """Return what decompresses before the damage; an error discards all that its call produced."""
    text = b""
    for start in range(0, len(packed), step):
        before, some = inflate.copy(), packed[start : start + step]
        try:
            text += inflate.decompress(some)
        except zlib.error:
            return text + _until_damage(before, some, 1) if step > 1 else text
    return text


def _without_events(text: bytes, container: Container) -> bytes:
    array = _ARRAY_WITHOUT_OBJECTS.match(text)
    if not (array and _finish(container, text[array.end() :])):
        container.has_end, container.has_partial_event = False, not array
    return array[0] if array else b"[]"


def _opened(path: Path, source: Iterator[bytes], container: Container) -> bytes:
    """Return the text from the array's bracket on, having read the metadata before it."""
    text = b""
    for block in source:
        searched = max(len(text) - len(b'"traceEvents" : '), 0)
        text = (text + block).removeprefix(_BYTE_ORDER_MARK).lstrip()
        if text.startswith(b"["):
            container.is_object = False
            return text
        if not text.startswith(b"{") or len(text) > _LONGEST_HEAD_BYTES:
            break
        for match in _EVENTS_KEY.finditer(text, searched):
            entries = _object(text[: match.start()].rstrip().removesuffix(b",") + b"}")
            if entries is not None:
                container.metadata.update(entries)
                return text[match.end() :]
    raise UnreadableTrace(path, *_no_events(text, container))


def _with_first_key(opening: bytes, source: Iterator[bytes]) -> bytes:
    """Return the text with as much more as it takes to see the first event's first key."""
    while first_key(opening) is None and len(opening) < HEAD_BYTES:
        block = next(source, None)
        if block is None:
            break
        opening += block
    return opening


def _no_events(text: bytes, container: Container) -> tuple[str, str]:
    if container.is_damaged:
        return "is damaged: it does not decompress as far as its events", "Copy the file again"
    again = "Record it again: the profiler did not finish writing"
    if not text:
        return "is empty", again
    if text.lstrip()[:1] != b"{":
        return "is not JSON", "Name the .json or .json.gz file that the PyTorch profiler wrote"
    if _object(text) is None:
        return "ends before its events begin", again
    return "holds no traceEvents", "Name the .json file that the PyTorch profiler wrote"


def _next_cut(
    separator: re.Pattern[bytes], file: BinaryIO, position: int
) -> tuple[int, int] | None:
    """Return where the first separator after `position` starts and ends in the file."""
    window = _CUT_WINDOW_BYTES
    while True:
        file.seek(position)
        text = file.read(window)
        if match := separator.search(text):
            return position + match.start(), position + match.end()
        if len(text) < window:
            return None
        window *= 8


def _last_match(separator: re.Pattern[bytes], buffer: bytes) -> re.Match[bytes] | None:
    window = _CUT_WINDOW_BYTES
    while True:
        found = list(separator.finditer(buffer, max(len(buffer) - window, 0)))
        if found or window >= len(buffer):
            return found[-1] if found else None
        window *= 8


def _ended(buffer: bytes, separator: re.Pattern[bytes], container: Container) -> bytes:
    """Return the last chunk, its array closed, having read the metadata after it.

    The array ends at the first bracket from which the rest of the file is the rest of an object:
    a bracket inside an event is followed by further events, which are no part of one.
    """
    for match in _END_OF_ARRAY.finditer(buffer):
        if _finish(container, buffer[match.end() :]):
            return buffer[: match.end()]
    container.has_end = False
    cut = _last_match(separator, buffer)
    start = cut.end() if cut else 1
    text = buffer[start:].decode("utf-8", "replace")
    try:
        _, length = json.JSONDecoder(strict=False).raw_decode(text)
    except (ValueError, RecursionError):
        container.has_partial_event = True
        return (buffer[: cut.start()] if cut else b"[") + b"]"
    container.has_partial_event = "{" in text[length:]
    return buffer[:start] + text[:length].encode() + b"]"


def _finish(container: Container, rest: bytes) -> bool:
    """Read the text after the array; False if it is not the rest of the file's object."""
    rest = rest.strip()
    if not container.is_object:
        return not rest
    entries = _object(b"{" + rest.removeprefix(b","))
    container.metadata.update(entries or {})
    return entries is not None


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        entries = _decoded(text)
    except RecursionError:
        entries = _decoded(shallow(text))
    return entries if isinstance(entries, dict) else None


def _decoded(text: bytes) -> object:
    """Return what JSON text says; None where it is not valid."""
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(text)
    with contextlib.suppress(ValueError):
        return json.loads(text.decode("utf-8", "replace"), strict=False)
    return None
