"""What each column holds by the schema, and what becomes of a value that cannot be there.

SQLite stores any type in any column, and damage puts it there: such a value is read as null and
counted, text that is not UTF-8 keeps what can be decoded. Neither costs the trace.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import polars as pl
from polars.datatypes import DataType

Problem = Literal["undecodable", "unusable", "impossible"]
Faults = dict[tuple[Problem, str, str, int], int]
"""How many values, by problem, table, column and first id of the slice: read twice, known once."""

# What schema 3.0.0 has and the reader uses, beside `id`.
USED = {
    "rocpd_metadata": "tag value",
    "rocpd_string": "string",
    "rocpd_info_node": "machine_id hostname",
    "rocpd_info_process": "nid pid command environment",
    "rocpd_info_thread": "tid",
    "rocpd_info_agent": "nid pid type absolute_index type_index name product_name extdata",
    "rocpd_info_queue": "name",
    "rocpd_info_stream": "name",
    "rocpd_info_pmc": "agent_id name symbol",
    "rocpd_info_kernel_symbol": "display_name kernel_name",
    "rocpd_track": "pid tid name_id",
    "rocpd_event": "category_id stack_id parent_stack_id extdata",
    "rocpd_arg": "event_id type name value",
    "rocpd_pmc_event": "event_id pmc_id value",
    "rocpd_region": "pid tid start end name_id event_id",
    "rocpd_sample": "track_id timestamp event_id",
    "rocpd_kernel_dispatch": "pid agent_id kernel_id dispatch_id queue_id stream_id start end "
    "event_id",
    "rocpd_memory_copy": "pid start end name_id dst_agent_id dst_address src_agent_id src_address "
    "size queue_id stream_id event_id",
}
_TEXTS = frozenset(
    [
        "tag",
        "string",
        "machine_id",
        "hostname",
        "command",
        "environment",
        "type",
        "name",
        "product_name",
        "extdata",
        "symbol",
        "display_name",
        "kernel_name",
        "value",
        "operation",
    ]
)
TIMES = frozenset({"start", "end", "timestamp"})
# Lengths of intervals between times of half the range still fit the type.
_TIME_LIMIT = 1 << 62

_CLASSES: dict[DataType, frozenset[type]] = {
    pl.Int64(): frozenset({int, type(None)}),
    pl.Float64(): frozenset({int, float, type(None)}),
    pl.String(): frozenset({str, type(None)}),
}


class _Mended(str):
    """Text of which some bytes could not be decoded."""

    __slots__ = ()


def lenient_text(raw: bytes) -> str:
    """Decode text as `text_factory` of a connection: a bad byte becomes U+FFFD, and is known."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _Mended(raw.decode(errors="replace"))


def column_type(table: str, column: str) -> DataType:
    """Return the type that a column has by the schema."""
    if (table, column) == ("rocpd_pmc_event", "value"):
        return pl.Float64()
    return pl.String() if column in _TEXTS else pl.Int64()


def cleaned(values: Sequence[object], dtype: DataType) -> tuple[Sequence[object], Counter[Problem]]:
    """Return values of one type and null only, and how many were changed.

    A number where text belongs is that number as text: SQLite itself converts digits in JSON
    columns.
    """
    allowed = _CLASSES[dtype]
    if set(map(type, values)) <= allowed:
        return values, Counter()
    problems: Counter[Problem] = Counter()
    kept: list[object] = []
    for value in values:
        kept.append(None)
        if type(value) in allowed:
            kept[-1] = value
        elif dtype == pl.String() and isinstance(value, str | int | float):
            if isinstance(value, _Mended):
                problems["undecodable"] += 1
            kept[-1] = str(value)
        else:
            problems["unusable"] += 1
    return kept, problems


def without_impossible_times(frame: pl.DataFrame) -> tuple[pl.DataFrame, Counter[str]]:
    """Replace times at the ends of the range by null; returns how many, by column."""
    counts: Counter[str] = Counter()
    for name in TIMES.intersection(frame.columns):
        possible = frame[name].is_between(-_TIME_LIMIT, _TIME_LIMIT, closed="none")
        if not possible.all():
            counts[name] = int((~possible).sum())
            frame = frame.with_columns(pl.when(possible).then(name).alias(name))
    return frame, counts
