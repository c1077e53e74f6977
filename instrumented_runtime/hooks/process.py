"""What all hooks of one process share: the gate, where markers go, the report."""

import atexit
import mmap
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from .buffers import Buffers
from .markers import Markers
from .reports import Report
from .streams import Streams

LOOK_EVERY_S = 0.05
# Told at every look whether the window is open; returns whether something now began to record.
Listener = Callable[[bool], bool]


class Process:
    """One process of a server.

    A thread looks at the window's byte and keeps `gate`, which is all that a hooked call reads:
    0 while nothing is to be written, else a number that no earlier opening had. The gate opens
    after the listeners have, a profiler among them, and closes before they do, so no marker is
    written that nothing records.

    Attributes:
        gate: One number, changed in place.
        markers: Where markers go.
        report: What this process says of itself.
        streams: Streams that were seen, for markers.
        buffers: Buffers that were declared, for markers.
        listeners: Told of the window.
        environment: What the process was started in.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Map the window's byte, if there is one; nothing runs yet."""
        folder = environment.get("TRACEKIT_HOOKS_DIR") or None
        self.environment = environment
        self.gate = [0]
        self.report = Report(folder)
        self.markers = Markers(environment.get("TRACEKIT_MARKERS", "off"), self.report.problem)
        self.streams = Streams(self.gate, self.markers, self.report.problem)
        self.buffers = Buffers(self.gate, self.markers)
        self.listeners: list[Listener] = []
        self._flag = self._mapped(folder)
        self._seen = self._opened = 0
        self._is_over = False
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._forked)

    def watch(self) -> None:
        """Begin to follow the window, and to report; a process that never does costs nothing."""
        if self._is_followed():  # who follows may hold the lock for as long as a trace takes
            return
        with self._lock:
            if self._is_followed():
                return
            self._thread = threading.Thread(target=self._follow, name="tracekit", daemon=True)
            atexit.register(self.close)
            self._thread.start()
        self.report.write()

    def _is_followed(self) -> bool:
        return self._thread is not None

    def patch(self, name: str, state: str, reason: str = "") -> None:
        """Report what became of a patch."""
        self.report.patches[name] = {"state": state, "reason": reason}
        if self._thread is None:
            self.watch()
        else:
            self.report.write()

    def guarded(self, say: Callable[..., None], *args: object) -> None:
        """Write markers; what goes wrong is reported and kept from the server."""
        try:
            say(*args)
        except Exception as problem:
            self.report.problem(f"{say.__qualname__}: {problem!r}")

    def look(self) -> None:
        """Follow the window's byte once."""
        with self._lock:
            if self._is_over:  # else an open window would look like a new one
                return
            value = self._flag[0]
            changed = value != self._seen
            if changed and self._seen & 1:
                self._tell(is_open=False)
            began = self._tell(is_open=True) if value & 1 else False
            if value & 1 and (changed or began):
                self._opened += 1
                self.gate[0] = self._opened
            if changed:
                self._seen = self.report.window = value
                self.report.write()

    def close(self) -> None:
        """Let the listeners finish: the process ends."""
        with self._lock:
            self._is_over = True
            if self._seen & 1:
                self._tell(is_open=False)

    def _tell(self, *, is_open: bool) -> bool:
        if not is_open:
            self.gate[0] = 0
        began = False
        for listener in self.listeners:
            try:
                began = listener(is_open) or began
            except Exception as problem:
                self.report.problem(f"window: {problem!r}")
        return began

    def _follow(self) -> None:
        while True:
            try:
                self.look()
            except Exception as problem:
                self.report.problem(f"window: {problem!r}")
            time.sleep(LOOK_EVERY_S)

    def _forked(self) -> None:
        # The thread did not come along, and what the parent records is the parent's.
        had_thread, self._thread = self._thread is not None, None
        self._lock = threading.RLock()
        self._seen = self.gate[0] = 0
        self._is_over = False
        self.report.forget()
        if had_thread:
            self.watch()

    def _mapped(self, folder: str | None) -> "mmap.mmap | bytes":
        if folder is None:
            return b"\0"
        try:
            with (Path(folder) / "window").open("rb") as file:
                return mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as problem:
            self.report.problem(f"{folder}/window: {problem}; the window stays closed")
            return b"\0"
