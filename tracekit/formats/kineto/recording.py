"""One Kineto file as raw columns with absolute times: what every table is made from."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from tracekit.formats import Progress
from tracekit.formats.kineto import container, lanes, metadata
from tracekit.formats.kineto.chunk import Chunk, decode, merged
from tracekit.formats.kineto.columns import DETAILED, TIMED, Decoded

# Below this, one process is done before another has started.
PARALLEL_BYTES = 64 << 20
_USUAL_GZIP_RATIO = 14
# Sums of a base time and any two of these stay in 64 bits.
_FURTHEST_NS = 2**61
_LATEST_NS = 2**62


@dataclass
class Recording:
    """The events of one file.

    Attributes:
        path: The file.
        metadata: Top-level entries of the file besides the events.
        ranges: Host ranges: section, name, pid, tid, start_ns, end_ns.
        details: Device work, host calls and synchronisation: the same and the arguments.
        unread: Events of categories without a table, counted by category.
        counts: What was lost or changed: `lost`, `partial`, `untimed`, `lengthless`, `negative`
            events, `short_frames`.
        has_end: The file ends as JSON ends.
        is_damaged: It does not because its compressed data is damaged.
        base_ns: What the file's times count from; null in old files, whose times are epoch times.
    """

    path: Path
    metadata: dict[str, Any]
    ranges: pl.DataFrame
    details: pl.DataFrame
    unread: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    has_end: bool = True
    is_damaged: bool = False
    base_ns: int | None = None


def recorded(path: Path, progress: Progress) -> Recording:
    """Read a file into columns, on several cores if it is large.

    Raises:
        UnreadableTrace: The file holds no `traceEvents`.
    """
    size = path.stat().st_size
    around = container.Container()
    chunks = container.chunks(path, around, lambda done: progress(done, size, "bytes"))
    with path.open("rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    expected_bytes = size * (_USUAL_GZIP_RATIO if is_gzip else 1)
    workers = lanes.workers_for(expected_bytes, PARALLEL_BYTES, is_stream=is_gzip)
    parts, unread, counts = _gathered(chunks, workers)
    counts["partial"] += around.has_partial_event
    base_ns = metadata.base_ns(around.metadata)
    return Recording(
        path,
        around.metadata,
        _absolute(pl.concat([part.ranges for part in parts]), base_ns or 0, counts),
        _absolute(pl.concat([part.details for part in parts]), base_ns or 0, counts),
        unread,
        counts,
        around.has_end,
        around.is_damaged,
        base_ns,
    )


def _gathered(
    chunks: Iterator[Chunk], workers: int
) -> tuple[list[Decoded], Counter[str], Counter[str]]:
    previous: Chunk = b"[]"
    parts = [Decoded(TIMED.to_frame(), DETAILED.to_frame(), Counter())]
    for chunk, part in lanes.decoded(chunks, workers):
        if parts[-1].has_broken_tail and part.lost:
            # The cut between them may have gone through an event; then they decode as one.
            previous, whole = merged(previous, chunk), decode(merged(previous, chunk))
            if whole.lost < parts[-1].lost + part.lost:
                parts[-1] = whole
                continue
        previous = chunk
        parts.append(part)
    unread: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for part in parts:
        unread += part.unread
        counts.update(lost=part.lost, short_frames=part.short_frames)
    return parts, unread, counts


def _absolute(columns: pl.DataFrame, base_ns: int, counts: Counter[str]) -> pl.DataFrame:
    """Return columns with `start_ns` and `end_ns`.

    Rows without a usable time are left out; rows without a usable length, or with a negative one,
    have none. All are counted.
    """
    start = pl.col("ts_ns") + base_ns
    timed = columns.filter(
        pl.col("ts_ns").is_between(-_FURTHEST_NS, _FURTHEST_NS)
        & start.is_between(-_LATEST_NS, _LATEST_NS)
    )
    length = pl.col("dur_ns")
    has_length = length.is_between(-_FURTHEST_NS, _FURTHEST_NS) & (start + length <= _LATEST_NS)
    timed = timed.with_columns(pl.when(has_length).then(length))
    counts["untimed"] += len(columns) - len(timed)
    counts["lengthless"] += timed["dur_ns"].null_count()
    counts["negative"] += int((timed["dur_ns"] < 0).sum())
    length = pl.max_horizontal(length.fill_null(0), 0)
    return timed.with_columns(start_ns=start, end_ns=start + length).drop("ts_ns", "dur_ns")
