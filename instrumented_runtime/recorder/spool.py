"""The spool: what a recording has so far, on disk, so that a kill of its process loses little.

A spool is the folder `virtual_{pid}.spool`: one file per table of `layout.TABLES` with its rows as
little-endian 64-bit integers, and `names.jsonl`, whose first line describes the process. The
writer holds an advisory lock (flock) on `names.jsonl` until it is gone, however it goes.
"""

import fcntl
import json
import os
import sys
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from instrumented_runtime.recorder.layout import TABLES

FORMAT = 1
_NAMES = "names.jsonl"
# Operations before the calls that made them: what was in memory before its operation is on disk
# before it too.
_FLUSH_ORDER = tuple(reversed(TABLES))


class RecorderError(Exception):
    """Something that the one who records can put right, said in one sentence."""


def spool_path(directory: Path, pid: int) -> Path:
    return directory / f"virtual_{pid}.spool"


def database_path(directory: Path, pid: int) -> Path:
    return directory / f"virtual_{pid}.db"


class SpoolWriter:
    """Writes one spool; one thread calls `flush`, any other fills the arrays meanwhile."""

    def __init__(self, path: Path, process: Mapping[str, Any]) -> None:
        """Create the folder, lock it and describe the process.

        Raises:
            RecorderError: There is a spool already, or another process locks it.
        """
        self.path = path
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise RecorderError(
                f"{path}: is the spool of another recording; finalise or remove it first"
            ) from None
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND
        self._is_closed = False
        self._names = os.open(path / _NAMES, flags, 0o644)
        fcntl.flock(self._names, fcntl.LOCK_EX)
        self.note({"format": FORMAT, **process})
        self._files = {
            table: os.open(path / f"{table}.i64", os.O_CREAT | os.O_WRONLY, 0o644)
            for table in TABLES
        }
        self._written = dict.fromkeys(TABLES, 0)

    def note(self, line: Mapping[str, Any]) -> None:
        """Append one line to the names, at once and whole or not at all.

        Raises:
            RecorderError: The spool is closed.
        """
        if self._is_closed:
            raise RecorderError(f"{self.path}: this recording has ended")
        size = os.fstat(self._names).st_size
        try:
            _write_all(self._names, json.dumps(line).encode() + b"\n")
        except OSError:
            os.ftruncate(self._names, size)
            raise

    def flush(self, rows: Mapping[str, "array[int]"]) -> None:
        """Write what the arrays hold and delete it from their front.

        No lock: the copy, the deletion, and another thread's `extend` of a tuple or `frombytes` are
        each one C call that keeps the interpreter lock, so whole rows are seen, and rows added
        between the copy and the deletion lie behind what is deleted. The copy is needed: an array
        whose buffer is lent to a write cannot grow. After a failed write the same bytes go to the
        same place next time.
        """
        for table in _FLUSH_ORDER:
            waiting = rows[table]
            if not waiting:
                continue
            new = waiting[:]
            count = len(new)
            if sys.byteorder == "big":
                new.byteswap()
            _write_all(self._files[table], new.tobytes(), self._written[table])
            self._written[table] += count * new.itemsize
            del waiting[:count]

    def close(self) -> None:
        """Close all files, which gives the lock back."""
        self._is_closed = True
        for file in (*self._files.values(), self._names):
            os.close(file)

    def remove(self) -> None:
        """Delete the spool."""
        remove_spool(self.path)


def _write_all(file: int, content: bytes, offset: int | None = None) -> None:
    view = memoryview(content)
    while view:
        done = os.write(file, view) if offset is None else os.pwrite(file, view, offset)
        view = view[done:]
        offset = None if offset is None else offset + done


def remove_spool(path: Path) -> None:
    """Delete the files of a spool and its folder, and nothing else.

    Raises:
        OSError: The folder holds something that is not of a spool.
    """
    for table in TABLES:
        (path / f"{table}.i64").unlink(missing_ok=True)
    (path / _NAMES).unlink()
    path.rmdir()


@dataclass
class Spool:
    """A spool as read: what the process is, what names stand for, and the rows.

    Attributes:
        process: The first line of the names; in it `first_call`, if not the first.
        names: Per kind (kernel, text, stream, queue) the names by number.
        rows: Per table `[rows, columns] int64`, mapped from disk.
        torn: Per table, and for `names`, how many unfinished rows or lines were dropped.
    """

    process: dict[str, Any]
    names: dict[str, dict[int, str]]
    rows: dict[str, NDArray[np.int64]]
    torn: dict[str, int] = field(default_factory=dict)


def read_spool(path: Path) -> Spool:
    """Read a spool, dropping and counting what its writer could not finish.

    Raises:
        RecorderError: It is not a spool, or is damaged elsewhere than at its ends.
    """
    torn: dict[str, int] = {}
    process, names = _read_names(path / _NAMES, torn)
    rows = {table: _read_rows(path / f"{table}.i64", table, torn) for table in TABLES}
    return Spool(process, names, rows, torn)


def _read_names(
    path: Path, torn: dict[str, int]
) -> tuple[dict[str, Any], dict[str, dict[int, str]]]:
    *lines, rest = path.read_bytes().split(b"\n")
    if rest:
        torn["names"] = 1
    try:
        process, *notes = [json.loads(line) for line in lines]
        if process["format"] != FORMAT:
            raise RecorderError(f"{path}: is of format {process['format']}, not {FORMAT}")
        names: dict[str, dict[int, str]] = {
            kind: {} for kind in ("kernel", "text", "stream", "queue", "model")
        }
        for note in notes:
            # SQLite takes no halves of characters.
            name = note["name"].encode(errors="replace").decode()
            if note["kind"] == "first_call":
                process["first_call"] = note["number"]
            else:
                names[note["kind"]][note["number"]] = name
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RecorderError(f"{path}: is not what a recorder wrote, or is damaged") from None
    return process, names


def _read_rows(path: Path, table: str, torn: dict[str, int]) -> NDArray[np.int64]:
    width = len(TABLES[table])
    size = path.stat().st_size if path.exists() else 0
    count, rest = divmod(size, 8 * width)
    if rest:
        torn[table] = 1
    if not count:
        return np.empty((0, width), np.int64)
    return np.memmap(path, "<i8", "r", shape=(count, width))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a spool, so that nobody else writes or finalises it.

    Raises:
        RecorderError: It has no names, or its writer lives, or another finalises it.
    """
    try:
        file = os.open(path / _NAMES, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        raise RecorderError(f"{path}: is not a spool; it has no {_NAMES}") from None
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RecorderError(
                f"{path}: is in use; wait until the process that records it has ended"
            ) from None
        yield
    finally:
        os.close(file)
