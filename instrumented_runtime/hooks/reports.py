"""What a process says of itself: `<pid>.json` in the folder where capture and processes meet."""

import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

MAX_PROBLEMS = 20
_PROBLEM_CHARACTERS = 300


class Report:
    """Written whole at each change of note, under another name first and then renamed."""

    def __init__(self, folder: str | None) -> None:
        """Write into a folder; nowhere if there is none."""
        self._folder = None if folder is None else Path(folder)
        self._lock = threading.RLock()
        self.window = 0
        self.hooks: dict[str, dict[str, list[str]]] = {}
        self.patches: dict[str, dict[str, str]] = {}
        self.profiler: dict[str, str] = {"state": "idle"}
        self.versions: dict[str, str] = {}
        self.problems: list[str] = []

    def problem(self, text: str) -> None:
        """Say what went wrong, once, to the server's log and in the report; never raises."""
        text = text[:_PROBLEM_CHARACTERS]
        with self._lock:
            if text in self.problems or len(self.problems) >= MAX_PROBLEMS:
                return
            self.problems.append(text)
        with suppress(OSError, ValueError, AttributeError):  # there may be no log
            sys.stderr.write(f"tracekit: {text}\n")
        self.write()

    def write(self) -> None:
        """Replace the file; never raises."""
        if self._folder is None:
            return
        import json  # here, since most processes write nothing

        pid = os.getpid()
        partial = self._folder / f".{pid}.{threading.get_ident()}.partial"
        try:
            with self._lock:
                partial.write_text(json.dumps(self._content(pid)), encoding="utf-8")
                partial.replace(self._folder / f"{pid}.json")
        except OSError as problem:
            folder, self._folder = self._folder, None
            self.problem(f"{folder}: {problem}; this process reports no more")

    def forget(self) -> None:
        """Begin anew, in a process that was forked off: what its parent did is not its own."""
        self._lock = threading.RLock()
        self.window, self.profiler = 0, {"state": "idle"}

    def _content(self, pid: int) -> dict[str, Any]:
        # The command's name alone: arguments may hold secrets.
        argv = getattr(sys, "argv", None) or [""]
        return {
            "pid": pid,
            "argv": [Path(argv[0]).name],
            "python": sys.version.split()[0],
            "window": self.window,
            "hooks": self.hooks,
            "patches": self.patches,
            "profiler": self.profiler,
            "versions": self.versions,
            "problems": self.problems,
        }
