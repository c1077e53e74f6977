"""Events out of a chunk that is not valid JSON, and a count of those beyond rescue."""

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from tracekit.formats.kineto.columns import Decoded, ExactEvent, columns_of
from tracekit.formats.kineto.cuts import first_key, separator_before
from tracekit.formats.kineto.depth import shallow

_EVENT = msgspec.json.Decoder(ExactEvent)
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])
_EVENTS = msgspec.json.Decoder(list[ExactEvent])
_WITHOUT_CONTROL_CHARACTERS = bytes(max(code, ord(" ")) for code in range(256))
_MOST_NESTED = 16
_UNDECODABLE = (msgspec.DecodeError, RecursionError)
_NOT_A_NUMBER = re.compile(rb"([:\[,]\s*)-?(?:nan|inf|NaN|Infinity)\b")


def rescued(array: bytes) -> Decoded:
    """Decode what can be decoded of a JSON array of events.

    Raw control characters and invalid UTF-8 in strings are replaced (Kineto copies kernel and user
    names as they are), a bare `nan` or `inf` becomes null, and so does what is nested too deeply.
    Events that are broken in other ways (before 2026 quotes in names were not escaped) and elements
    that are no events are lost and counted.
    """
    clean = array.translate(_WITHOUT_CONTROL_CHARACTERS).decode("utf-8", "replace").encode()
    try:
        return columns_of(_EVENTS.decode(clean))
    except _UNDECODABLE:
        key = first_key(clean)
    body = clean.strip()[1:-1]
    pieces = [body] if key is None else separator_before(key).split(body)
    events: list[ExactEvent] = []
    lost: dict[int, int] = {}
    for start, found, count in _halved(pieces):
        events += found
        if count:
            lost[start] = count
    events += _mended(pieces, lost)
    return columns_of(events)._replace(
        lost=sum(lost.values()), has_broken_tail=len(pieces) - 1 in lost
    )


def _joined(pieces: Iterable[bytes]) -> list[ExactEvent]:
    return _EVENTS.decode(b"[%b]" % b",".join(pieces))


def _halved(pieces: Sequence[bytes]) -> Iterator[tuple[int, list[ExactEvent], int]]:
    """Yield `(start, events, 0)` of runs that decode, and what each other piece holds and loses.

    Finds k broken pieces among n in about k·log2(n) decodes.
    """
    stack = [(0, len(pieces))]
    while stack:
        start, stop = stack.pop()
        try:
            yield start, _joined(pieces[start:stop]), 0
        except _UNDECODABLE:
            if stop - start > 1:
                middle = (start + stop) // 2
                stack += [(middle, stop), (start, middle)]
            else:
                yield start, *_one_by_one(pieces[start])


def _one_by_one(piece: bytes) -> tuple[list[ExactEvent], int]:
    """Return the events of a piece and how many of its elements are none; 1 if it is not JSON."""
    text = shallow(_NOT_A_NUMBER.sub(rb"\1null", piece))
    try:
        elements = _ELEMENTS.decode(b"[%b]" % text)
    except msgspec.DecodeError:
        return [], 1
    events = []
    for element in elements:
        with contextlib.suppress(msgspec.DecodeError):
            events.append(_EVENT.decode(element))
    return events, len(elements) - len(events)


def _mended(pieces: Sequence[bytes], lost: dict[int, int]) -> list[ExactEvent]:
    """Return events that had been split between objects nested in them, no longer in `lost`."""
    events: list[ExactEvent] = []
    for start in sorted(lost):
        for stop in range(start + 2, min(start + _MOST_NESTED, len(pieces)) + 1):
            if start not in lost or pieces[start].count(b"{") <= pieces[start].count(b"}"):
                break
            with contextlib.suppress(*_UNDECODABLE):
                events += _joined(pieces[start:stop])
                for mended in range(start, stop):
                    lost.pop(mended, None)
                break
    return events
