"""SQLite connections that never write, and whose errors never quote what is stored."""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from tracekit.errors import UnreadableTrace
from tracekit.formats.rocpd.values import lenient_text

_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
DAMAGED = "Copy or record it again; PRAGMA integrity_check in sqlite3 says how much is damaged"
_REASONS = {
    "SQLITE_CORRUPT": "the database is malformed",
    "SQLITE_NOTADB": "it is no SQLite database",
    "SQLITE_CANTOPEN": "it cannot be opened",
}


# Python decodes SQLite's messages, and they quote damaged names of tables.
ERRORS = (sqlite3.Error, UnicodeDecodeError)


def connected(path: Path, uri: str) -> sqlite3.Connection:
    """Open a database for any thread; `path` is what the user named."""
    try:
        return sqlite3.connect(uri, uri=True, check_same_thread=False)
    except sqlite3.Error as error:
        raise UnreadableTrace(path, _reason(error), "Check its permissions") from None


def sqlite_uri(path: Path) -> str:
    """Return the address of a file as one that nobody writes to."""
    # `immutable` keeps SQLite from making lock, journal or shared-memory files beside the file.
    return f"file:{quote(os.fsencode(path.absolute()))}?mode=ro&immutable=1"


def refuse_unfinished(path: Path) -> None:
    """Raise `UnreadableTrace` where a journal says that the writer stopped half-way."""
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
def readable_copy(path: Path) -> Iterator[Path]:
    """Yield the path itself, or a private copy where a write-ahead log must be replayed."""
    log = path.with_name(f"{path.name}-wal")
    if not (log.is_file() and log.stat().st_size):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="tracekit-") as folder:
        copy = Path(folder) / "copy.db"
        shutil.copyfile(path, copy)
        shutil.copyfile(log, f"{copy}-wal")
        with closing(sqlite3.connect(copy)) as connection, damage_reported(path):
            connection.execute("PRAGMA journal_mode = delete")
        yield copy


@contextmanager
def damage_reported(path: Path, table: str = "") -> Iterator[None]:
    """Turn an error of SQLite into one sentence, without its text and its cause."""
    try:
        yield
    except ERRORS as error:
        raise UnreadableTrace(path, _reason(error, table), DAMAGED) from None


def fetched(connection: sqlite3.Connection, query: str) -> list[tuple[object, ...]]:
    """Return all rows. Decoding in Python is slow, so only where SQLite's own meets a bad byte."""
    connection.text_factory = str
    try:
        return connection.execute(query).fetchall()
    except (sqlite3.OperationalError, UnicodeDecodeError):
        connection.text_factory = lenient_text
        return connection.execute(query).fetchall()


def _reason(error: Exception, table: str = "") -> str:
    """Say what is wrong in our own words: SQLite's quote what is stored, which may be a secret."""
    name = getattr(error, "sqlite_errorname", "SQLITE_CORRUPT")
    known = (words for start, words in _REASONS.items() if name.startswith(start))
    why = next(known, f"SQLite fails with {name or 'an error of its own'}")
    return f"cannot be read as rocpd: {why}{f' at table {table}' if table else ''}"
