"""The byte that tells every process of a server to record, and what the processes say of it.

Server and capture meet in one folder. `window` in it is a single byte that every process maps: odd
while the window is open, one more each time it opens or closes. Each process writes what it found
and how far it has followed the byte as `<pid>.json`.
"""

import os
import time
from collections.abc import Callable, Set
from pathlib import Path
from typing import Literal

import msgspec

LOOK_EVERY_S = 0.02


class ProfilerState(msgspec.Struct):
    """What the profiler inside a process is doing.

    Attributes:
        state: `idle` if this process has nothing to profile, or is done without a file.
        path: Of the file, once it is written.
        reason: Why it failed.
    """

    state: Literal["idle", "recording", "written", "failed"] = "idle"
    path: str | None = None
    reason: str | None = None


class Targets(msgspec.Struct):
    """What became of a hook's targets in one process."""

    found: list[str] = []
    missing: list[str] = []
    changed: list[str] = []


class PatchState(msgspec.Struct):
    """What became of a patch in one process: applied, not-needed, refused or waiting."""

    state: str
    reason: str | None = None


class ProcessReport(msgspec.Struct):
    """What one process says of itself.

    Attributes:
        pid: Its number.
        window: Value of the byte that it has finished acting on.
        hooks: By name.
        patches: By name.
        profiler: Of the profiler that runs inside it, if one does.
        versions: Of the modules that hooks waited for.
        problems: What went wrong in hooks, each in a sentence.
    """

    pid: int
    window: int = 0
    hooks: dict[str, Targets] = {}
    patches: dict[str, PatchState] = {}
    profiler: ProfilerState = msgspec.field(default_factory=ProfilerState)
    versions: dict[str, str] = {}
    problems: list[str] = []


class Window:
    """The byte, and what processes say of it."""

    def __init__(self, folder: Path, *, is_open: bool = False) -> None:
        """Make the folder with the byte in it.

        Args:
            folder: Absolute; made if absent.
            is_open: Whether hooks write from the first call on.
        """
        self.folder = folder
        self.value = int(is_open)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "window").write_bytes(bytes([self.value]))

    @property
    def is_open(self) -> bool:
        """Whether processes are to record."""
        return self.value % 2 == 1

    def open(self) -> None:
        """Tell all processes to record; nothing if they do."""
        if not self.is_open:
            self._advance()

    def close(self) -> None:
        """Tell all processes to stop; nothing if they have."""
        if self.is_open:
            self._advance()

    def reports(self) -> dict[int, ProcessReport]:
        """Return what each process has said last, also of those that have ended."""
        reports: dict[int, ProcessReport] = {}
        for path in sorted(self.folder.glob("*.json")):
            try:
                report = msgspec.json.decode(path.read_bytes(), type=ProcessReport)
            except (FileNotFoundError, msgspec.DecodeError):
                continue  # a process that writes no report we can read has acknowledged nothing
            reports[report.pid] = report
        return reports

    def laggards(self, pids: Set[int]) -> set[int]:
        """Return which of these processes have reported but not yet followed the byte."""
        reports = self.reports()
        late = {pid for pid in reports.keys() & pids if reports[pid].window != self.value}
        return {pid for pid in late if self._is_followed_by(pid)}

    def wait(self, pids: Callable[[], Set[int]], timeout_s: float) -> set[int]:
        """Wait until every process that has ever reported follows the byte.

        Args:
            pids: The living processes; asked again and again, since one may end meanwhile.
            timeout_s: After which the others are given up.

        Returns:
            The processes that did not.
        """
        deadline = time.monotonic() + timeout_s
        while late := self.laggards(pids()):
            if time.monotonic() > deadline:
                return late
            time.sleep(LOOK_EVERY_S)
        return set()

    def _is_followed_by(self, pid: int) -> bool:
        """Return whether a process maps the byte, as far as this system tells.

        A launcher in Python reports, and then becomes something else: rocprofv3 is one.
        """
        try:
            maps = Path("/proc", str(pid), "maps").read_bytes()
        except OSError:
            return True
        return os.fsencode(self.folder.resolve() / "window") in maps

    def _advance(self) -> None:
        self.value = (self.value + 1) % 256
        # In place: to truncate or replace the file would pull the page from under those who map it.
        file = os.open(self.folder / "window", os.O_WRONLY)
        try:
            os.pwrite(file, bytes([self.value]), 0)
        finally:
            os.close(file)
