"""Whether a trace file that another process writes is complete.

A writer says so at best by a rename, and some not at all, so a file counts as complete only when
its content reads to the end and it did not change between two looks.
"""

import gzip
import re
import sqlite3
import time
import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import psutil

_CHUNK = 1 << 20
# Names the process of the host's rows, beside those that Kineto makes up for GPUs.
_PROCESS = re.compile(
    rb'"process_labels"[^{}]*"pid"\s*:\s*(\d+)[^{}]*"args"\s*:\s*\{\s*"labels"\s*:\s*"CPU"'
)
_LONGEST_ROW = 4096

T = TypeVar("T")


@dataclass(slots=True)
class Looks(Generic[T]):
    """Remembers each file's last look, to tell those that have come to rest.

    Attributes:
        read: Reads a file to its end; None if it is not complete. Called once per state of a file.
        settle_s: For how long a file must not have changed; 0 where a rename completes it.
    """

    read: Callable[[Path], T | None]
    settle_s: float = 0.5
    _seen: dict[Path, tuple[tuple[int, int], float]] = field(default_factory=dict)
    _content: dict[Path, tuple[tuple[int, int], T | None]] = field(default_factory=dict)

    def complete(self, path: Path) -> T | None:
        """Return what a complete file holds; None if it is absent, changes, or ends too soon."""
        try:
            stat = path.stat()
        except FileNotFoundError:
            return None
        state, now = (stat.st_size, stat.st_mtime_ns), time.monotonic()
        if path not in self._seen or self._seen[path][0] != state:
            self._seen[path] = state, now
        if now - self._seen[path][1] < self.settle_s:
            return None
        if path not in self._content or self._content[path][0] != state:
            self._content[path] = state, self.read(path)
        return self._content[path][1]


def read_database(path: Path) -> str | None:
    """Return the schema version of a rocpd file; None while a transaction is under way."""
    if path.with_name(f"{path.name}-journal").exists():
        return None
    # Immutable: no lock is taken, which could make the commit of its writer fail.
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as file:
            # Views come last, so one that answers says that the schema is whole.
            file.execute("SELECT 1 FROM rocpd_kernel_dispatch LIMIT 1").fetchone()
            found = file.execute("SELECT value FROM rocpd_metadata WHERE tag = 'schema_version'")
            row = found.fetchone()
    except sqlite3.Error:
        return None
    return str(row[0]) if row else None


def roll_back(path: Path) -> bool:
    """Let SQLite undo what a writer that is dead had begun; return whether there was anything.

    Until then no reader takes the file. A living writer holds a lock, and is left alone by SQLite.
    """
    journal = path.with_name(f"{path.name}-journal")
    if not journal.exists():
        return False
    try:
        with closing(sqlite3.connect(path, timeout=0)) as file:
            file.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error:
        return False
    return not journal.exists()


def is_held(path: Path, pid: int) -> bool:
    """Return whether a process has a file open; False if it is gone or cannot be asked."""
    try:
        return any(Path(file.path) == path.resolve() for file in psutil.Process(pid).open_files())
    except (psutil.Error, OSError):
        return False


def read_kineto(path: Path) -> int | None:
    """Return the process that a complete Kineto file is of, 0 if it does not say.

    Complete is what ends as JSON does and, where it is compressed, with gzip's trailer. The file is
    read once from end to end.
    """
    opened = gzip.open if path.suffix == ".gz" else Path.open
    pid, tail = 0, b""
    try:
        with opened(path, "rb") as file:
            while chunk := file.read(_CHUNK):
                window = tail + chunk
                if not pid and (named := _PROCESS.search(window)):
                    pid = int(named[1])
                tail = window[-_LONGEST_ROW:]
    except (OSError, EOFError, zlib.error):
        return None
    return pid if tail.rstrip().endswith(b"}") else None
