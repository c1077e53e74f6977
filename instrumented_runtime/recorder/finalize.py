"""Makes the database of a spool: written beside its place, then renamed into it."""

import hashlib
import os
import sqlite3
import sys
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from instrumented_runtime.recorder.layout import TABLES
from instrumented_runtime.recorder.rocpd_rows import RocpdRows
from instrumented_runtime.recorder.schema import RocpdTables, create_schema
from instrumented_runtime.recorder.spool import (
    RecorderError,
    Spool,
    database_path,
    locked,
    read_spool,
    remove_spool,
)


@dataclass(frozen=True)
class Finalised:
    """What became of a spool.

    Attributes:
        path: The database.
        rows: Whole rows of the spool.
        torn: Per table, and for `names`, what was unfinished and dropped.
        without_call: Operations kept although their call is not there.
    """

    path: Path
    rows: int
    torn: dict[str, int]
    without_call: int

    def sentence(self) -> str:
        """Return what to tell the one who asked for it."""
        parts = [f"Wrote {self.path} from {self.rows} rows"]
        for table, count in self.torn.items():
            what = "line" if table == "names" else "row"
            parts.append(f"dropped {count} unfinished {what} of {table}")
        if self.without_call:
            parts.append(f"kept {self.without_call} operations whose call was not recorded")
        return "; ".join(parts)


def finalize_spool(folder: Path) -> Finalised:
    """Make the database that belongs to a spool left behind, then remove the spool.

    Raises:
        RecorderError: Its process lives, it is no spool, or the database is already there.
    """
    with locked(folder):
        pid = read_spool(folder).process["pid"]
        done = write_database(folder, database_path(folder.parent, pid))
        remove_spool(folder)
    return done


def write_database(folder: Path, target: Path) -> Finalised:
    """Write the database of a spool whose lock the caller holds.

    The same rows and seed give the same bytes (with one version of SQLite). Nothing is journalled:
    a half-written file is never at `target`.

    Raises:
        RecorderError: The target exists, cannot be written, or rows of the spool contradict.
    """
    _refuse_existing(target)
    spool = read_spool(folder)
    partial = target.with_name(target.name + ".partial")
    partial.unlink(missing_ok=True)
    try:
        without_call = _write(spool, partial, _progress_of(target))
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        _refuse_existing(target)
        partial.rename(target)
    except sqlite3.IntegrityError as error:
        raise RecorderError(f"{folder}: its rows contradict each other ({error})") from error
    except sqlite3.Error as error:
        raise RecorderError(f"{target}: cannot be written ({error})") from error
    finally:
        partial.unlink(missing_ok=True)
    rows = sum(len(rows) for rows in spool.rows.values())
    return Finalised(target, rows, spool.torn, without_call)


def _refuse_existing(target: Path) -> None:
    if target.exists():
        raise RecorderError(f"{target}: exists and is not overwritten; move it first")


def _write(spool: Spool, path: Path, progress: Callable[[int, int], None]) -> int:
    guid = _guid(spool)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("BEGIN")
        create_schema(connection, guid)
        without_call = RocpdRows(RocpdTables(connection, guid), spool, progress).write()
        connection.execute("COMMIT")
    return without_call


def _guid(spool: Spool) -> str:
    """Return what tells this recording from all others.

    Made of its rows too: ROCm's tools join the files of several processes on it, and two with one
    guid would count everything many times.
    """
    process = spool.process
    content = hashlib.sha256(f"{process['seed']}:{process['pid']}:{spool.names}".encode())
    for table in TABLES:
        content.update(spool.rows[table].tobytes())
    return str(uuid.UUID(bytes=content.digest()[:16], version=5))


def _progress_of(target: Path) -> Callable[[int, int], None]:
    """Return what shows progress: a line on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        return lambda _done, _total: None

    def show(done: int, total: int) -> None:
        end = "\n" if done == total else ""
        sys.stderr.write(f"\r{target.name}: {done} of {total} rows{end}")
        sys.stderr.flush()

    return show
