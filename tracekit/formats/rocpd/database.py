"""A rocpd file as SQLite: opened without ever writing, its captures found, its tables loaded.

Two ways to the rows. Tables of a few thousand rows come through the standard library. Tables with
a row per event come through connectorx, in slices of row ids on every core: it types columns by
their declaration, so that nulls in the first rows do not mislead it (`bench/rocpd_loaders.py` has
the comparison with ADBC).
"""

import os
import re
import shutil
import sqlite3
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import connectorx
import polars as pl

from tracekit.errors import UnreadableTrace

SLICE_ROWS = 1 << 18
_MOST_SLICES = 256
_NAME_IN_SCHEMA = b"rocpd_info_process"
_SCHEMA_BYTES = 1 << 20
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")

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

_DAMAGED = "Copy or record it again; PRAGMA integrity_check in sqlite3 says how much is damaged"


@dataclass(frozen=True)
class Capture:
    """The tables of one guid: one process's recording, alone in a file or merged with others.

    Attributes:
        path: File it is in.
        suffix: What its table names end in.
        columns: Column names of each table there is, by the table's bare name.
    """

    path: Path
    suffix: str
    columns: Mapping[str, frozenset[str]]
    _connection: sqlite3.Connection = field(repr=False)
    _uri: str = field(repr=False)

    def has(self, table: str, *columns: str) -> bool:
        """Return whether a table and all these columns exist."""
        return self.columns.get(table, frozenset()).issuperset(columns) and table in self.columns

    def rows(
        self, table: str, columns: Sequence[str], where: str = "1"
    ) -> list[tuple[object, ...]]:
        """Return rows of a small table; a column that does not exist is None in every row."""
        if table not in self.columns:
            return []
        names = ", ".join(self._selected(table, name) for name in columns)
        with _damage_reported(self.path):
            return self._connection.execute(
                f'SELECT {names} FROM "{table}{self.suffix}" WHERE {where}'
            ).fetchall()

    def last_row_id(self, table: str) -> int:
        """Return the largest id of a table, 0 if it has no row: about its size, at no cost."""
        return self._row_ids(table)[1]

    def slices(
        self, table: str, columns: Sequence[str], where: str = "1"
    ) -> Iterator[pl.DataFrame]:
        """Yield a large table in slices, ordered by id, while the following ones load.

        Args:
            table: Bare name of the table; yields nothing where it does not exist or is empty.
            columns: Wanted columns; the frames have those that exist.
            where: SQL condition.
        """
        first, last = self._row_ids(table)
        if last < first:
            return
        step = max(SLICE_ROWS, (last - first) // _MOST_SLICES + 1)
        existing = [name for name in columns if self.has(table, name)]
        cores = len(os.sched_getaffinity(0))
        waiting: deque[Future[pl.DataFrame]] = deque()
        with ThreadPoolExecutor(cores) as pool:
            for start in range(first, last + 1, step):
                ids = range(start, min(start + step, last + 1))
                waiting.append(pool.submit(self._slice, table, existing, ids, where))
                if len(waiting) > cores:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _slice(self, table: str, columns: list[str], ids: range, where: str) -> pl.DataFrame:
        source = f'FROM "{table}{self.suffix}" WHERE id BETWEEN {ids[0]} AND {ids[-1]}'
        others = [name for name in columns if name != "id"]
        if others and others != columns:
            # Ids mostly have no gaps: then they are known from how many rows there are.
            frame = self._load(f"SELECT {_quoted(others)} {source} AND {where} ORDER BY id")
            if frame.height == len(ids):
                known = pl.int_range(ids[0], ids[-1] + 1, dtype=pl.Int64, eager=True).alias("id")
                return frame.with_columns(known).select(columns)
        return self._load(f"SELECT {_quoted(columns)} {source} AND {where} ORDER BY id")

    def _load(self, query: str) -> pl.DataFrame:
        try:
            frame = pl.from_arrow(connectorx.read_sql(self._uri, query, return_type="arrow"))
        except RuntimeError as error:
            raise UnreadableTrace(self.path, _reason(error), _DAMAGED) from error
        assert isinstance(frame, pl.DataFrame)
        return frame

    def _row_ids(self, table: str) -> tuple[int, int]:
        # One minimum or maximum is the end of a tree; both in one query would scan the table.
        ends = [self.rows(table, [f"{end}(id)"]) for end in ("min", "max")]
        first, last = (rows[0][0] if rows else None for rows in ends)
        return (first, last) if isinstance(first, int) and isinstance(last, int) else (1, 0)

    def _selected(self, table: str, name: str) -> str:
        if name in {"min(id)", "max(id)"} or self.has(table, name):
            return name if "(" in name else f'"{name}"'
        return f'NULL AS "{name}"'


@contextmanager
def open_captures(path: Path) -> Iterator[list[Capture]]:
    """Open a file read-only and yield its captures, in the order in which they were added.

    Raises:
        UnreadableTrace: It is no database, is damaged, or its writer stopped half-way.
    """
    # SQLite keeps its journal and log beside the file itself, not beside a link to it.
    _refuse_unfinished(path.resolve())
    with _readable_copy(path.resolve()) as readable:
        uri = _sqlite_uri(readable)
        with closing(_connected(path, uri)) as connection, _damage_reported(path):
            tables = _tables_by_suffix(connection)
            yield [
                Capture(path, suffix, columns, connection, f"sqlite://{quote(uri)}")
                for suffix, columns in tables.items()
            ]


def holds_rocpd(path: Path) -> bool:
    """Return whether a SQLite file has base tables of rocpd, readable or not."""
    try:
        with closing(_connected(path, _sqlite_uri(path))) as connection:
            return bool(_tables_by_suffix(connection))
    except (sqlite3.DatabaseError, UnreadableTrace):
        # Damaged or cut short: the statements that made the tables still name them.
        with path.open("rb") as file:
            return _NAME_IN_SCHEMA in file.read(_SCHEMA_BYTES)


def _tables_by_suffix(connection: sqlite3.Connection) -> dict[str, dict[str, frozenset[str]]]:
    found: dict[str, dict[str, frozenset[str]]] = {}
    # Views have the bare names and join their rows away: only base tables are looked at.
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid")
    for (name,) in names.fetchall():
        # A longer bare name (rocpd_info_pmc_x) leaves a remainder that is no suffix.
        for bare in _TABLES:
            if name.startswith(bare) and _SUFFIX.fullmatch(suffix := name[len(bare) :]):
                columns = connection.execute(f'PRAGMA table_info("{name}")').fetchall()
                found.setdefault(suffix, {})[bare] = frozenset(column[1] for column in columns)
    return {suffix: tables for suffix, tables in found.items() if _OWN_TABLES & set(tables)}


def _connected(path: Path, uri: str) -> sqlite3.Connection:
    try:
        return sqlite3.connect(uri, uri=True, check_same_thread=False)
    except sqlite3.OperationalError as error:
        raise UnreadableTrace(path, _reason(error), "Check its permissions") from error


def _sqlite_uri(path: Path) -> str:
    # `immutable` keeps SQLite from making lock, journal or shared-memory files beside the file.
    return f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"


def _refuse_unfinished(path: Path) -> None:
    journal = path.with_name(f"{path.name}-journal")
    if journal.is_file():
        with journal.open("rb") as file:
            if file.read(len(_JOURNAL_MAGIC)) == _JOURNAL_MAGIC:
                raise UnreadableTrace(
                    path,
                    f"was still being written when its writer stopped ({journal.name} is there)",
                    "Record it again and let the profiler finish, or let sqlite3 roll back a copy",
                )


@contextmanager
def _readable_copy(path: Path) -> Iterator[Path]:
    """Yield the path itself, or a private copy where a write-ahead log must be replayed."""
    log = path.with_name(f"{path.name}-wal")
    if not (log.is_file() and log.stat().st_size):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="tracekit-") as folder:
        copy = Path(folder) / "copy.db"
        shutil.copyfile(path, copy)
        shutil.copyfile(log, f"{copy}-wal")
        with closing(sqlite3.connect(copy)) as connection, _damage_reported(path):
            connection.execute("PRAGMA journal_mode = delete")
        yield copy


@contextmanager
def _damage_reported(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise UnreadableTrace(path, _reason(error), _DAMAGED) from error


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _reason(error: Exception) -> str:
    lines = str(error).splitlines() or ["cannot be read"]
    return f"cannot be read as rocpd: {lines[0]}"
