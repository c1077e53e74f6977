"""A rocpd file as SQLite: opened without ever writing, its captures found, its tables loaded.

Two ways to the rows. Tables of a few thousand rows come through the standard library. Tables with
a row per event come through connectorx, in slices of row ids on every core: it types columns by
their declaration, so that nulls in the first rows do not mislead it (`bench/rocpd_loaders.py` has
the comparison with ADBC).
"""

import os
import re
import sqlite3
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import connectorx
import polars as pl
from polars.datatypes import DataType

from tracekit.errors import UnreadableTrace
from tracekit.formats.rocpd.connections import (
    DAMAGED,
    ERRORS,
    connected,
    damage_reported,
    fetched,
    readable_copy,
    refuse_unfinished,
    sqlite_uri,
)
from tracekit.formats.rocpd.values import (
    Faults,
    Problem,
    cleaned,
    column_type,
    lenient_text,
    without_impossible_times,
)

SLICE_ROWS = 1 << 18
_MOST_SLICES = 256
_NAME_IN_SCHEMA = b"rocpd_info_process"
_SCHEMA_BYTES = 1 << 20

# rocprofv3 appends `_` and the guid, rocprof-sys the 32 hex digits of an md5, with or without `_`.
_SUFFIX = re.compile(r"_[0-9a-f]{8}(_[0-9a-f]{4}){3}_[0-9a-f]{12}|_?[0-9a-f]{32}|")
_TABLES = (
    "rocpd_metadata",
    "rocpd_string",
    "rocpd_info_node",
    "rocpd_info_process",
    "rocpd_info_thread",
    "rocpd_info_agent",
    "rocpd_info_queue",
    "rocpd_info_stream",
    "rocpd_info_pmc",
    "rocpd_info_kernel_symbol",
    "rocpd_track",
    "rocpd_event",
    "rocpd_arg",
    "rocpd_pmc_event",
    "rocpd_region",
    "rocpd_sample",
    "rocpd_kernel_dispatch",
    "rocpd_memory_copy",
    "rocpd_graph_launch",
    "rocpd_hip_event",
)
# A file is ours if it holds one of these as a base table: ROCm's older RPD format shares names like
# rocpd_string and rocpd_metadata, but has none of these.
_OWN_TABLES = frozenset({"rocpd_info_process", "rocpd_kernel_dispatch"})


@dataclass(frozen=True)
class Capture:
    """The tables of one guid: one process's recording, alone in a file or merged with others.

    Attributes:
        path: File it is in.
        suffix: What its table names end in.
        columns: Column names of each table there is, by the table's bare name.
        faults: Values that were read otherwise than they are stored, so far.
    """

    path: Path
    suffix: str
    columns: Mapping[str, frozenset[str]]
    _connection: sqlite3.Connection = field(repr=False)
    _uri: str = field(repr=False)
    faults: Faults = field(default_factory=dict)

    def has(self, table: str, *columns: str) -> bool:
        """Return whether a table and all these columns exist."""
        return self.columns.get(table, frozenset()).issuperset(columns) and table in self.columns

    def rows(
        self, table: str, columns: Sequence[str], where: str = "1"
    ) -> list[tuple[object, ...]]:
        """Return rows of a small table, of the columns' types; what does not exist is None."""
        if table not in self.columns:
            return []
        names = ", ".join(self._selected(table, name) for name in columns)
        query = f'SELECT {names} FROM "{table}{self.suffix}" WHERE {where}'
        with damage_reported(self.path, table):
            found = fetched(self._connection, query)
        return list(zip(*self._cleaned(table, columns, found), strict=True))

    def last_row_id(self, table: str) -> int:
        """Return the largest id of a table, 0 if it has no row: about its size, at no cost."""
        return self._row_ids(table)[1]

    def slices(
        self, table: str, columns: Sequence[str], where: str = "1"
    ) -> Iterator[pl.DataFrame]:
        """Yield a large table in slices, ordered by id, while the following ones load.

        Args:
            table: Bare name of the table; yields nothing where it does not exist or is empty.
            columns: Wanted columns; those that do not exist are null.
            where: SQL condition on columns that exist.
        """
        first, last = self._row_ids(table)
        if last < first:
            return
        step = max(SLICE_ROWS, (last - first) // _MOST_SLICES + 1)
        cores = len(os.sched_getaffinity(0))
        waiting: deque[Future[pl.DataFrame]] = deque()
        with ThreadPoolExecutor(cores) as pool:
            for start in range(first, last + 1, step):
                ids = range(start, min(start + step, last + 1))
                waiting.append(pool.submit(self._slice, table, columns, ids, where))
                if len(waiting) > cores:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _slice(self, table: str, columns: Sequence[str], ids: range, where: str) -> pl.DataFrame:
        # Ids mostly have no gaps: then they are known from how many rows there are.
        others = [name for name in columns if name != "id" and self.has(table, name)]
        if others and "id" in columns:
            frame = self._load(table, others, ids, where)
            if frame.height == len(ids):
                known = pl.int_range(len(ids), dtype=pl.Int64, eager=True) + ids[0]
                return self._completed(table, columns, frame.with_columns(known.alias("id")))
        return self._completed(table, columns, self._load(table, ["id", *others], ids, where))

    def _completed(self, table: str, columns: Sequence[str], frame: pl.DataFrame) -> pl.DataFrame:
        absent = [name for name in columns if name not in frame.columns]
        return frame.with_columns(
            pl.lit(None, column_type(table, name)).alias(name) for name in absent
        ).select(columns)

    def _load(self, table: str, columns: list[str], ids: range, where: str) -> pl.DataFrame:
        names = ", ".join(f'"{name}"' for name in columns)
        query = (
            f'SELECT {names} FROM "{table}{self.suffix}" '
            f"WHERE id BETWEEN {ids[0]} AND {ids[-1]} AND {where} ORDER BY id"
        )
        schema = {name: column_type(table, name) for name in columns}
        try:
            url = f"sqlite://{quote(self._uri)}"
            frame = pl.from_arrow(connectorx.read_sql(url, query, return_type="arrow"))
        except RuntimeError:
            frame = None
        if not isinstance(frame, pl.DataFrame) or frame.schema != schema:
            frame = self._load_value_by_value(table, schema, query, ids[0])
        frame, impossible = without_impossible_times(frame)
        for name, count in impossible.items():
            self._note_faults(table, name, ids[0], Counter({"impossible": count}))
        return frame

    def _load_value_by_value(
        self, table: str, schema: Mapping[str, DataType], query: str, first: int
    ) -> pl.DataFrame:
        """Load what connectorx refuses: it gives up at the first value of another type."""
        with closing(connected(self.path, self._uri)) as connection:
            connection.text_factory = lenient_text
            with damage_reported(self.path, table):
                found = connection.execute(query).fetchall()
        values = self._cleaned(table, list(schema), found, first)
        return pl.DataFrame(dict(zip(schema, values, strict=True)), schema=dict(schema))

    def _cleaned(
        self,
        table: str,
        columns: Sequence[str],
        rows: list[tuple[object, ...]],
        first: int = 0,
    ) -> list[Sequence[object]]:
        transposed = list(zip(*rows, strict=True)) or [()] * len(columns)
        kept = []
        for name, values in zip(columns, transposed, strict=True):
            usable, problems = cleaned(values, column_type(table, name))
            self._note_faults(table, name, first, problems)
            kept.append(usable)
        return kept

    def _note_faults(self, table: str, column: str, first: int, problems: Counter[Problem]) -> None:
        for problem, count in problems.items():
            key = (problem, table, column, first)
            self.faults[key] = max(count, self.faults.get(key, 0))

    def _row_ids(self, table: str) -> tuple[int, int]:
        if table not in self.columns:
            return (1, 0)
        # One minimum or maximum is the end of a tree; both in one query would scan the table.
        ends = []
        with damage_reported(self.path, table):
            for end in ("min", "max"):
                query = f'SELECT {end}(id) FROM "{table}{self.suffix}"'
                ends += fetched(self._connection, query)
        (first,), (last,) = ends
        if isinstance(first, int) and isinstance(last, int):
            return first, last
        if first is None and last is None:
            return (1, 0)
        raise UnreadableTrace(self.path, f"has ids in {table} that are no numbers", DAMAGED)

    def _selected(self, table: str, name: str) -> str:
        return f'"{name}"' if self.has(table, name) else f'NULL AS "{name}"'


@contextmanager
def open_captures(path: Path) -> Iterator[list[Capture]]:
    """Open a file read-only and yield its captures, in the order in which they were added.

    Raises:
        UnreadableTrace: It is no database, is damaged, or its writer stopped half-way.
    """
    # SQLite keeps its journal and log beside the file itself, not beside a link to it.
    refuse_unfinished(path.resolve())
    with readable_copy(path.resolve()) as readable:
        uri = sqlite_uri(readable)
        with closing(connected(path, uri)) as connection, damage_reported(path):
            tables = _tables_by_suffix(connection)
            yield [
                Capture(path, suffix, columns, connection, uri)
                for suffix, columns in tables.items()
            ]


def holds_rocpd(path: Path) -> bool:
    """Return whether a SQLite file has base tables of rocpd, readable or not."""
    try:
        with closing(connected(path, sqlite_uri(path))) as connection:
            return bool(_tables_by_suffix(connection))
    except (*ERRORS, UnreadableTrace):
        # Damaged or cut short: the statements that made the tables still name them.
        with path.open("rb") as file:
            return _NAME_IN_SCHEMA in file.read(_SCHEMA_BYTES)


def _tables_by_suffix(connection: sqlite3.Connection) -> dict[str, dict[str, frozenset[str]]]:
    found: dict[str, dict[str, frozenset[str]]] = {}
    connection.text_factory = lenient_text
    # Views have the bare names and join their rows away: only base tables are looked at.
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid")
    for (name,) in names.fetchall():
        # A longer bare name (rocpd_info_pmc_x) leaves a remainder that is no suffix.
        for bare in _TABLES:
            if name.startswith(bare) and _SUFFIX.fullmatch(suffix := name[len(bare) :]):
                columns = connection.execute(f'PRAGMA table_info("{name}")').fetchall()
                found.setdefault(suffix, {})[bare] = frozenset(column[1] for column in columns)
    return {suffix: tables for suffix, tables in found.items() if _OWN_TABLES & set(tables)}
