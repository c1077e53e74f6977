"""Records what the virtual device does, as the rocpd file that rocprofv3 would write of a real one.

The device appends rows of integers to `Recorder.rows`; a thread spools them to disk; `close` makes
the SQLite file of them. If the process is killed, `python -m instrumented_runtime.recorder finalize
DIR` does. All times are virtual, and the file names a model as its device.
"""

import json
import threading
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from instrumented_runtime.recorder.finalize import write_database
from instrumented_runtime.recorder.layout import TABLES
from instrumented_runtime.recorder.spool import (
    RecorderError,
    SpoolWriter,
    database_path,
    spool_path,
)

__all__ = ["Recorder", "RecorderError"]

FLUSH_EVERY_S = 0.3
# What the modelled profiler collects, as rocprofv3 leaves it in the environment of a process.
SWITCHES = {
    f"ROCPROF_{what}_TRACE": "1"
    for what in ("HIP_RUNTIME_API", "KERNEL", "MEMORY_COPY", "MEMORY_ALLOCATION", "MARKER_API")
}


class Recorder:
    """One process's recording.

    Attributes:
        rows: One array of 64-bit integers per entry of `layout.TABLES`. Only whole rows may be
            appended, each by one `extend` of a tuple or one `frombytes`, by any thread; see
            `SpoolWriter.flush` for why that needs no lock.
    """

    def __init__(
        self,
        directory: Path,
        *,
        pid: int = 1,
        seed: int = 0,
        environment: Mapping[str, str],
        command: str = "virtual-device",
    ) -> None:
        """Start the spool, and the thread that fills it.

        Args:
            directory: Where spool and database go; made if absent.
            pid: Number of the modelled process, from 1; not that of the operating system.
            seed: Of what is modelled; part of what the database's guid is made of.
            environment: What to record as the process's environment, beside the profiler's own
                switches. Nothing is taken from the real environment.
            command: What to record as its command line.

        Raises:
            RecorderError: The database or a spool of this pid is already there.
        """
        if type(pid) is not int or not 1 <= pid < 1 << 31:
            raise ValueError(f"pid must be a whole number from 1 to 2^31 − 1, not {pid}")
        self._database = database_path(directory, pid)
        if self._database.exists():
            raise RecorderError(f"{self._database}: exists; move it, or record elsewhere")
        process = {
            "pid": pid,
            "seed": seed,
            "environment": {**SWITCHES, **environment},
            "command": command,
        }
        self._spool = SpoolWriter(spool_path(directory, pid), process)
        self.rows: dict[str, array[int]] = {table: array("q") for table in TABLES}
        self._numbers: dict[str, dict[str, int]] = {"kernel": {}, "text": {}}
        self._on_flush: Callable[[], None] | None = None
        self._before_close: Callable[[], None] | None = None
        self._closed = False
        self._stop = threading.Event()
        self._flusher = threading.Thread(target=self._flush_until_stopped, daemon=True)
        self._flusher.start()

    def kernel(self, name: str) -> int:
        """Return the number of a kernel, from 1; the same for the same name."""
        return self._numbers["kernel"].get(name) or self._intern("kernel", name)

    def text(self, text: str) -> int:
        """Return the number of a marker's text, from 1; the same for the same text."""
        return self._numbers["text"].get(text) or self._intern("text", text)

    def stream(self, stream_id: int, name: str) -> None:
        """Name a stream; number 0 is always "Default Stream", unnamed ones are "Stream 3"."""
        self._spool.note({"kind": "stream", "number": stream_id, "name": name})

    def queue(self, queue_id: int, name: str) -> None:
        """Name a hardware queue; number 0 is always "Default Queue"."""
        self._spool.note({"kind": "queue", "number": queue_id, "name": name})

    def attach(
        self,
        model: Mapping[str, object],
        *,
        first_call: int = 1,
        on_flush: Callable[[], None],
        before_close: Callable[[], None],
    ) -> None:
        """Take note of the device that fills the rows.

        Raises:
            RecorderError: A device is attached already: its numbers of calls would clash.

        Args:
            model: What is modelled, as the trace is to say it.
            first_call: Number of the first call that is recorded, for a device that ran before.
                What belongs to an earlier one is left out of the database, and counted.
            on_flush: Called by the spooling thread after each flush, to ask for what is not in the
                rows yet.
            before_close: Called by `close`, to put in the rows what is still to come.
        """
        if self._before_close is not None:
            raise RecorderError(f"{self._database}: is of another device; take a new Recorder")
        self._spool.note({"kind": "model", "number": 0, "name": json.dumps(model, sort_keys=True)})
        if first_call > 1:
            self._spool.note({"kind": "first_call", "number": first_call, "name": ""})
        self._on_flush, self._before_close = on_flush, before_close

    def close(self) -> Path:
        """Let the device finish, make the database, remove the spool; return the database's path.

        Raises:
            RecorderError: The database came to be meanwhile.
            OSError: It cannot be written (no space, say).

        Whatever is raised, all is kept: `close` can be called again, or the spool finalised when
        the process has ended.
        """
        if self._closed:
            return self._database
        self._stop.set()
        self._flusher.join()
        if self._before_close is not None:
            self._before_close()
        self._spool.flush(self.rows)
        write_database(self._spool.path, self._database)
        self._spool.remove()
        self._spool.close()
        self._closed = True
        return self._database

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _intern(self, kind: str, name: str) -> int:
        known = self._numbers[kind]
        number = len(known) + 1
        # On disk before any row can name it.
        self._spool.note({"kind": kind, "number": number, "name": name})
        known[name] = number
        return number

    def _flush_until_stopped(self) -> None:
        while not self._stop.wait(FLUSH_EVERY_S):
            # A failure is tried again next time, and at last by `close`, which raises it.
            with suppress(OSError):
                self._spool.flush(self.rows)
            if self._on_flush is not None:
                self._on_flush()
