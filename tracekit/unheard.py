"""stderr whose reader may go: what is said then is lost, what is done goes on.

A server that is being stopped, or a trace that is being written, is worth more than its progress.
"""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_CLOSED_PIPE = 141
_OTHER = 2


class Unheard(io.FileIO):
    """Writes to a descriptor and goes quiet at the first error.

    Attributes:
        problem: That error; None while all was written.
    """

    problem: OSError | None = None

    # Python 3.11 has no `typing.override`.
    def write(self, data: "ReadableBuffer", /) -> int:  # type: ignore[explicit-override]
        """Write, or pretend to."""
        if self.problem is None:
            try:
                return super().write(data)
            except OSError as problem:
                self.problem = problem
        return memoryview(data).nbytes


class Heard:
    """Whether all that was said could be written.

    Attributes:
        raw: Where it went; None if that was no file.
    """

    raw: Unheard | None = None

    def exit_code(self) -> int:
        """Return 0 if it could, 141 if nobody reads any more, 2 for another reason."""
        problem = self.raw.problem if self.raw else None
        if problem is None:
            return 0
        return _CLOSED_PIPE if isinstance(problem, BrokenPipeError) else _OTHER


@contextmanager
def stderr_may_break() -> Iterator[Heard]:
    """Let nothing fail within the context because stderr cannot be written."""
    heard, before = Heard(), sys.stderr
    try:
        descriptor = before.fileno()
    except (OSError, ValueError):  # a stream in memory cannot break
        yield heard
        return
    before.flush()
    heard.raw = Unheard(descriptor, "w", closefd=False)
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(heard.raw), before.encoding, before.errors, line_buffering=True
    )
    try:
        yield heard
    finally:
        sys.stderr.flush()
        sys.stderr = before
