"""What a server prints, written down redacted as it comes, and its last lines for messages."""

import re
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO

KEPT_LINES = 20

# A progress bar without a line end is cut, so that memory is bounded.
_LONGEST_LINE = 1 << 16


class ServerLog:
    """Reads the output of a tree to its end, on a thread of its own.

    The output is read whatever happens, since a server whose pipe is full stands still: after the
    disk is full lines are no longer written, only remembered.

    Attributes:
        problem: Why lines could not be written; None if all were.
    """

    def __init__(
        self,
        output: IO[bytes],
        path: Path,
        redacted: Callable[[str], str],
        awaited: re.Pattern[str] | None = None,
    ) -> None:
        """Begin to read.

        Args:
            output: To its end: when every process that holds it is gone.
            path: Of the file; lines are appended.
            redacted: Removes secrets from a line.
            awaited: What `has_come` waits for.
        """
        self.problem: OSError | None = None
        self._output = output
        self._redacted = redacted
        self._awaited = awaited
        self._came = threading.Event()
        self._last: deque[str] = deque(maxlen=KEPT_LINES)
        self._file = path.open("ab", buffering=0)
        self._thread = threading.Thread(target=self._read, name="server-log", daemon=True)
        self._thread.start()

    def has_come(self) -> bool:
        """Return whether a line was printed in which the awaited pattern is found."""
        return self._came.is_set()

    def last_lines(self) -> list[str]:
        """Return the last lines, redacted."""
        return list(self._last)

    def close(self, timeout_s: float = 1.0) -> None:
        """Wait for the end of the output; a process that keeps it open is not waited for."""
        self._thread.join(timeout_s)

    def _read(self) -> None:
        with self._file:
            while line := self._output.readline(_LONGEST_LINE):
                self._take(line.decode(errors="replace").rstrip("\r\n"))
        self._output.close()

    def _take(self, line: str) -> None:
        if self._awaited is not None and self._awaited.search(line):
            self._came.set()
        shown = self._redacted(line)
        self._last.append(shown)
        if self.problem is None:
            try:
                self._file.write(f"{shown}\n".encode())
            except OSError as error:
                self.problem = error
