"""Kineto events as columns: the fields and arguments that tracekit reads, and no others.

Flow arrows and metadata rows are dropped: what they say, correlation numbers say better.
"""

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import polars as pl

from tracekit.formats.kineto.depth import shallow
from tracekit.formats.kineto.messages import packed
from tracekit.formats.kineto.sections import HOST_RANGES, SECTIONS, section_of
from tracekit.formats.kineto.times import InexactTimesError, nanoseconds

# Frames are most of a file, and most of them are shorter than any wait worth asking "who called
# it?": a call that blocks this long is inside frames at least as long.
SHORTEST_FRAME_US = 5

_ABSENT = msgspec.Raw(b"null")
_INSTANTS = frozenset("iI")
_UNCOUNTED_PHASES = frozenset("Mstf")

TIMED = pl.Schema(
    {
        "section": SECTIONS,
        "name": pl.Categorical(),
        "pid": pl.Int64(),
        "tid": pl.Int64(),
        "ts_ns": pl.Int64(),
        "dur_ns": pl.Int64(),
    }
)


class Event(msgspec.Struct, gc=False):
    """One event; its times are in a form that a subclass says."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: msgspec.Raw = _ABSENT


class NumberedEvent(Event, gc=False):
    """One event; times as Python numbers, so that an event with other times does not decode."""

    ts: int | float | None = None
    dur: int | float | None = None


class ExactEvent(Event, gc=False):
    """One event; times as the text in the file."""

    ts: msgspec.Raw = _ABSENT
    dur: msgspec.Raw = _ABSENT


class Arguments(msgspec.Struct, gc=False):
    """The arguments tracekit reads; any JSON type, since writers disagree about quotes."""

    device: Any = None
    stream: Any = None
    hsa_queue: Any = None
    context: Any = None
    correlation: Any = None
    kind: Any = None
    bytes: Any = None
    src: Any = None
    dst: Any = None
    graph_id: Any = msgspec.field(default=None, name="graph id")
    graph_node: Any = msgspec.field(default=None, name="graph node id")
    cuda_sync_kind: Any = None
    wait_on_stream: Any = None
    record_correlation: Any = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")
    wait_on_event: Any = msgspec.field(default=None, name="wait_on_cuda_event_id")
    event_id: Any = None
    rank: Any = None
    pid_raw: Any = None
    # A collective's name as decoded, then `messages.packed`: few kernels have one.
    message: Any = msgspec.field(default=None, name="Collective name")


_TEXTS = frozenset({"kind", "src", "dst", "cuda_sync_kind", "message"})
ARGUMENTS = pl.Schema(
    {name: pl.String() if name in _TEXTS else pl.Int64() for name in Arguments.__struct_fields__}
)
DETAILED = pl.Schema({**TIMED, **ARGUMENTS})

_ARGUMENTS = msgspec.json.Decoder(list[Arguments | None])
_ARGUMENTS_OF_ONE = msgspec.json.Decoder(Arguments)


class Decoded(NamedTuple):
    """One chunk as columns.

    Attributes:
        ranges: Host ranges, columns of `TIMED`; `ts_ns` counts from the file's base time.
        details: Device work, host calls and synchronisation, columns of `DETAILED`.
        unread: Events of categories without a table, counted by category.
        short_frames: Python frames left out because they are shorter than `SHORTEST_FRAME_US`.
        lost: Events that are not valid JSON, and elements that are no events.
        has_broken_tail: The last event is not valid JSON.
    """

    ranges: pl.DataFrame
    details: pl.DataFrame
    unread: Counter[str]
    short_frames: int = 0
    lost: int = 0
    has_broken_tail: bool = False


def columns_of(events: Sequence[Event]) -> Decoded:
    """Return decoded events as columns.

    Raises:
        InexactTimesError: These are `NumberedEvent`s and must be `ExactEvent`s.
    """
    ranges, details, timed = [TIMED.to_frame()], [DETAILED.to_frame()], set()
    spans = 0
    for category in sorted({event.cat for event in events}, key=str):
        section = section_of(category or "")
        if section is None:
            continue
        timed.add(category)
        if section == "frame":
            frames = _timed(_long_frames(events, category), section)
            is_long = pl.col("dur_ns") >= SHORTEST_FRAME_US * 1000
            ranges.append(frames.filter(is_long | pl.col("dur_ns").is_null()))
            spans += len(ranges[-1])
            continue
        rows = [e for e in events if e.cat == category and e.ph == "X"]
        spans += len(rows)
        if section == "marker":
            instants = [e for e in events if e.cat == category and e.ph in _INSTANTS]
            ranges.append(_timed(rows + instants, section, without_length=len(instants)))
        elif section in HOST_RANGES:
            ranges.append(_timed(rows, section))
        else:
            details.append(_timed(rows, section).hstack(_arguments(rows)))
    rest = [e for e in events if e.ph != "X" or e.cat not in timed]
    unread = Counter(e.cat or e.name or f"phase {e.ph}" for e in rest if _is_unread(e))
    short_frames = len(events) - len(rest) - spans
    return Decoded(pl.concat(ranges), pl.concat(details), unread, short_frames)


def _long_frames(events: Sequence[Event], category: str | None) -> list[Event]:
    """Return a category's events that are not known to be short; a quick filter before columns."""
    if isinstance(events[0], ExactEvent):
        return [e for e in events if e.cat == category and e.ph == "X"]
    try:
        return [
            e for e in events if e.cat == category and e.dur >= SHORTEST_FRAME_US and e.ph == "X"
        ]
    except TypeError as error:
        raise InexactTimesError from error


def _is_unread(event: Event) -> bool:
    if event.ph in _INSTANTS:
        return section_of(event.cat or "") != "marker"
    return event.ph not in _UNCOUNTED_PHASES


def _timed(events: Sequence[Event], section: str, without_length: int = 0) -> pl.DataFrame:
    """Return the columns of `TIMED`; the last events, `without_length` of them, are instants."""
    lengths = nanoseconds([e.dur for e in events[: len(events) - without_length]])
    return pl.DataFrame(
        {
            "section": pl.repeat(section, len(events), dtype=SECTIONS, eager=True),
            "name": pl.Series([e.name for e in events], dtype=pl.String).cast(pl.Categorical),
            "pid": _values([e.pid for e in events], "pid", pl.Int64()),
            "tid": _values([e.tid for e in events], "tid", pl.Int64()),
            "ts_ns": nanoseconds([e.ts for e in events]),
            "dur_ns": lengths.extend_constant(0, without_length),
        },
        schema=TIMED,
    )


def _arguments(events: Sequence[Event]) -> list[pl.Series]:
    texts = [e.args for e in events]
    try:
        found = _ARGUMENTS.decode(b"[%b]" % b",".join(texts))
    except (msgspec.DecodeError, RecursionError):
        found = [_arguments_of_one(bytes(text)) for text in texts]
    none = Arguments()
    arguments = [one or none for one in found]
    for one, text in zip(arguments, texts, strict=True):
        if one.message is not None:
            one.message = packed(bytes(text))
    return [_values(list(map(attrgetter(n), arguments)), n, t) for n, t in ARGUMENTS.items()]


def _arguments_of_one(text: bytes) -> Arguments | None:
    try:
        return _ARGUMENTS_OF_ONE.decode(shallow(text))
    except msgspec.DecodeError:  # no object, or a number beyond all bounds
        return None


def _values(values: Sequence[Any], name: str, dtype: pl.DataType) -> pl.Series:
    """Return a column of mixed JSON values; what the type cannot hold is null."""
    try:
        return pl.Series(name, values, dtype=dtype)
    except (TypeError, OverflowError):
        return pl.Series(name, values, dtype=dtype, strict=False)
